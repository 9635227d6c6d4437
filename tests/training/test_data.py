"""What is wrong with data is said in one sentence before anything is written."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent.training import data as _data
from resolvent.training import preprocessing as _preprocessing
from resolvent.training import read


def frame(rows=60, **columns):
    random = np.random.default_rng(0)
    made = dict(a=random.normal(size=rows), b=random.choice(["x", "y"], rows), y=random.normal(size=rows))
    return pd.DataFrame(made | columns)


def write(path, content):
    if isinstance(content, pd.DataFrame):
        content.to_csv(path, index=False)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    return path


BAD = {
    "no such file": (None, {}, "data.csv does not exist; embedded are digits, diabetes, sunspots"),
    "empty": (b"", {}, "data.csv is empty"),
    "not a table": (b'a,y\n1,2\n"3', {}, "data.csv cannot be read as csv"),
    "not text": (b"a,y\n\xff\xfe,2\n", {}, "data.csv cannot be read as csv"),
    "no target": (frame(), dict(target=None), "the target column must be named: the columns are a, b, y"),
    "another target": (frame(), dict(target="Y1"), "target 'Y1' is no column: the columns are a, b, y"),
    "a misspelt target": (frame(price=1.0), dict(target="prise"), "target 'prise' is no column: 'price' is"),
    "a constant target": (frame(y=2.5), {}, "target 'y' is 2.5 in every row: there is nothing to learn"),
    "one class": (frame(y="yes"), {}, "target 'y' is 'yes' in every row"),
    "missing in the target": (
        frame(y=[*range(58), None, None]),
        {},
        "target 'y' is missing in 2 of 60 rows, first in row 59: leave them out",
    ),
    "ten rows": (frame(10), {}, "data has 10 rows, training needs at least 30"),
    "no rows": (b"a,y\n", {}, "data has 0 rows, training needs at least 30"),
    "infinite": (
        frame(a=[*range(59), np.inf]),
        {},
        "column 'a' has 1 infinite or huge values, at least 1e+30",
    ),
    "huge": (
        frame(a=[1e300, *range(59)]),
        {},
        "huge values, at least 1e+30, first in row 1",
    ),
    "more fields than the header": (b"a,y\n" + b"1,2,3\n" * 60, {}, "data.csv cannot be read as csv"),
    "another kind of target": (
        frame(y=pd.date_range("2020-01-01", periods=60)),
        dict(frame=True),
        "target 'y' must be numbers, texts or booleans, all alike: it has Timestamp",
    ),
    "a mixed target": (
        frame(y=["a", 1] * 30),
        dict(frame=True),
        "target 'y' must be numbers, texts or booleans, all alike: it has int, str",
    ),
    "two columns of one name": (
        frame().rename(columns={"b": "a"}),
        dict(frame=True),
        "data has two columns 'a'",
    ),
    "a machine larger than memory": (frame(), dict(sizes=(10**8,)), "GiB of memory to train"),
    "an endless seed": (frame(), dict(seed=2**32), "seed=4294967296 must be below 2³²"),
    "half an epoch": (frame(), dict(epochs=1.5), "epochs"),
    "infinite target": (
        frame(y=[*range(59), -np.inf]),
        {},
        "column 'y' has 1 infinite or huge values",
    ),
    "a class of two": (
        frame(y=["no"] * 58 + ["yes"] * 2),
        {},
        "class 'yes' of target 'y' has 2 rows, each needs at least 4",
    ),
    "texts to predict": (
        frame(10_000, y=[f"t{i}" for i in range(10_000)]),
        {},
        "target 'y' has 10,000 classes, more than 100",
    ),
    "texts as numbers": (
        frame(y=["a", "b"] * 30),
        dict(task="regression"),
        "target 'y' must be numbers for regression",
    ),
    "nothing to learn from": (
        frame(200, name=[f"n{i}" for i in range(200)])[["name", "y"]],
        {},
        "there is no column to learn 'y' from; column 'name' has 200 different texts",
    ),
    "a short series": (
        frame(40, year=range(40)),
        dict(lags=30),
        "data has 40 steps, 26 of them to train on: lags=30 is too long",
    ),
    "a series out of order": (
        frame(date=["2020-01-02", "2020-01-01"] * 30),
        dict(task="forecast"),
        "the rows are not in order of 'date': sort them first",
    ),
    "a table for a recurrent machine": (
        frame(),
        dict(machine="recurrent"),
        "a recurrent machine cannot learn regression from rows of a table: use dense",
    ),
    "lags for a table": (frame(), dict(lags=2), "lags=2 is for series, this is regression"),
    "an unknown activation": (frame(), dict(activation="tanhh"), "activation 'tanhh' is unknown: use one of"),
    "an empty block": (frame(), dict(sizes=(4, 0)), "sizes"),
    "no epochs": (frame(), dict(epochs=0), "epochs must be at least 1, got 0"),
    "no rate": (frame(), dict(lr=0.0), "lr=0.0 must be positive"),
    "no device": (frame(), dict(device="tpu"), "device='tpu' is unknown: use auto, cpu or cuda"),
    "no task": (
        frame(),
        dict(task="clustering"),
        "task='clustering' is unknown: use one of classification, regression",
    ),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("name", BAD)
def test_bad_data_is_refused_by_name_and_leaves_nothing_behind(name, tmp_path):
    content, options, message = BAD[name]
    path = write(tmp_path / "data.csv", content) if content is not None else tmp_path / "data.csv"
    before = sorted(tmp_path.rglob("*"))
    options = dict(options)
    source = content if options.pop("frame", False) else path
    with pytest.raises((ValueError, TypeError, FileNotFoundError)) as raised:
        rv.train(source, **(dict(target="y", out=tmp_path / "run") | options))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_file_larger_than_memory_says_what_it_needs(tmp_path, monkeypatch):
    path = write(tmp_path / "data.csv", frame(1000))
    monkeypatch.setattr(_data, "available_memory", lambda: 1000)
    with pytest.raises(
        ValueError, match=r"has 0\.0 GiB, reading it needs about 0\.0 GiB of memory and 0\.0 GiB are free"
    ):
        read(path, "y")
    monkeypatch.undo()
    assert _data.available_memory() > 2**20


@pytest.mark.parametrize("suffix", [".txt", ""])
def test_other_files_are_refused(suffix, tmp_path):
    path = tmp_path / f"data{suffix}"
    path.write_text("a,y\n1,2\n") if suffix else path.mkdir()
    with pytest.raises(ValueError, match=r"must be a \.csv or \.parquet file"):
        read(path, "y")


def test_a_damaged_parquet_file_is_refused(tmp_path):
    (tmp_path / "data.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(ValueError, match=r"data\.parquet cannot be read as parquet"):
        read(tmp_path / "data.parquet", "y")


def test_parquet_and_csv_are_the_same_data(tmp_path):
    frame().to_parquet(tmp_path / "data.parquet")
    csv = write(tmp_path / "data.csv", pd.read_parquet(tmp_path / "data.parquet"))
    assert read(tmp_path / "data.parquet", "y").digest() == read(csv, "y").digest()
    assert read(frame(61), "y").digest() != read(csv, "y").digest()


def test_prose_and_empty_columns_are_left_out_with_a_note():
    names = [f"name {i}" for i in range(10_000)]
    data = read(frame(10_000, name=names, nothing=None), "y")
    assert list(data.inputs) == ["a", "b"]
    assert data.notes == (
        "column 'name' has 10,000 different texts, more than 100, and is left out",
        "column 'nothing' is empty and is left out",
    )


@pytest.mark.parametrize(
    ("columns", "task"),
    [
        (dict(), "regression"),
        (dict(y=["a", "b"] * 30), "classification"),
        (dict(y=[True, False] * 30), "classification"),
        (dict(y=[0, 1, 2] * 20), "classification"),
        (dict(y=range(60)), "regression"),
        (dict(year=range(1960, 2020)), "forecast"),
        (dict(when=pd.date_range("2020-01-01", periods=60).astype(str)), "forecast"),
        (dict(when=["2020-01-01"] * 60), "regression"),
        (dict(year=[2000, 2001] * 30), "regression"),
    ],
)
def test_the_task_is_inferred(columns, task):
    assert read(frame(**columns), "y").task == task


def test_squares_of_numbered_columns_are_images():
    pixels = {f"pixel{i}": [float(i)] * 60 for i in reversed(range(16))}
    labels = dict(y=["a", "b"] * 30)
    data = read(pd.DataFrame(pixels | labels), "y")
    assert data.image == (1, 4, 4)
    assert list(data.inputs) == [f"pixel{i}" for i in range(16)]
    assert read(pd.DataFrame({f"x{i}": [0.5] * 60 for i in range(16)} | labels), "y").image is None
    assert read(pd.DataFrame(pixels | dict(other=1.0) | labels), "y").image is None
    assert read("digits").image == (1, 8, 8)


class TestPreprocessing:
    def data(self):
        random = np.random.default_rng(1)
        table = frame(200, c=random.choice([True, False], 200), y=random.choice(["no", "yes"], 200))
        table.loc[[1, 120], "a"] = np.nan
        table.loc[[2, 130], "b"] = None
        return read(table, "y")

    def test_is_what_scikit_learn_computes(self):
        data = self.data()
        preprocessing = _preprocessing.fit(data, np.arange(100))
        transformer = _preprocessing.transformer(data.inputs.iloc[:100])
        expected: Any = transformer.transform(data.inputs.assign(**_preprocessing._texts(data.inputs.filter(["b"]))))
        np.testing.assert_allclose(preprocessing.inputs(data.inputs), expected, rtol=1e-12)

    def test_is_fitted_on_the_training_rows_alone(self):
        data = self.data()
        before = _preprocessing.fit(data, np.arange(100))
        data.inputs.loc[100:, "a"] = 1e6
        assert _preprocessing.fit(data, np.arange(100)) == before
        data.inputs.loc[:50, "a"] = 1e6
        assert _preprocessing.fit(data, np.arange(100)) != before

    def test_comes_back_from_json(self):
        preprocessing = _preprocessing.fit(self.data(), np.arange(100))
        text = json.dumps(preprocessing.to_json(), allow_nan=False)
        assert _preprocessing.Preprocessing.from_json(json.loads(text)) == preprocessing
        for bad in ({}, [], json.loads(text) | dict(version=2), json.loads(text) | dict(extra=1)):
            with pytest.raises(ValueError, match="not a preprocessing of version 1"):
                _preprocessing.Preprocessing.from_json(bad)

    def test_takes_columns_in_any_order_and_names_missing_ones(self):
        data = self.data()
        preprocessing = _preprocessing.fit(data, np.arange(100))
        np.testing.assert_array_equal(
            preprocessing.inputs(data.inputs.filter(["c", "b", "a"])), preprocessing.inputs(data.inputs)
        )
        with pytest.raises(ValueError, match="the data lacks the columns a, c"):
            preprocessing.inputs(data.inputs.filter(["b"]))
        with pytest.raises(ValueError, match="column 'a' must be numbers below 1e\\+30, row 1 has much"):
            preprocessing.inputs(data.inputs.assign(a="much"))

    def test_a_category_it_never_saw_is_no_category(self):
        data = self.data()
        preprocessing = _preprocessing.fit(data, np.arange(100))
        assert (preprocessing.inputs(data.inputs.assign(b="z"))[:, -2:] == 0).all()

    def test_a_whole_number_among_texts_is_the_same_text_in_any_rows(self):
        table = frame(60, k=[1, "two", 2] * 20)
        preprocessing = _preprocessing.fit(read(table, "y"), np.arange(60))
        rows = [dict(a=0, b="x", k=1), dict(a=0, b="x", k=None)]
        alone, beside = (preprocessing.inputs(pd.DataFrame(rows[:count])) for count in (1, 2))
        np.testing.assert_array_equal(alone[0], beside[0])

    def test_a_column_that_is_empty_in_the_training_rows_is_left_out(self):
        data = read(frame(60, late=[None] * 50 + [1.0] * 10, words=[None] * 50 + ["x"] * 10), "y")
        assert [column.name for column in _preprocessing.fit(data, np.arange(50)).columns] == ["a", "b"]

    def test_booleans_with_missing_values_are_numbers(self):
        table = frame(60, c=pd.array([True, False, None] * 20, dtype="boolean"))
        data = read(table, "y")
        preprocessing = _preprocessing.fit(data, np.arange(60))
        np.testing.assert_array_equal(preprocessing.inputs(table), preprocessing.inputs(data.inputs))


def test_dates_across_a_change_of_clocks_make_a_series():
    when = pd.date_range("2020-03-01", periods=60, tz="Europe/Berlin").map(str)
    assert read(frame(60, when=when), "y").task == "forecast"


def test_categories_that_no_row_has_are_no_classes():
    goal = pd.Categorical(["a", "b"] * 30, categories=["a", "b", "c"])
    assert read(frame(60, y=goal), "y").target.nunique() == 2


def test_nested_columns_are_left_out_with_a_note():
    data = read(frame(60, nested=[[1, 2]] * 60), "y")
    assert data.notes == ("column 'nested' holds lists or other nested values and is left out",)
