"""A search takes a machine apart, says what is enough, and can be stopped at any moment."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import resolvent as rv
from resolvent.training import candidates_table, open_run, read
from resolvent.training import path as _path
from resolvent.training.fit import Diverged
from resolvent.training.linear import linear
from resolvent.training.run import network_of
from resolvent.training.search import _Search
from resolvent.training.settings import choose
from resolvent.training.split import divide, rows_of

SHORT: Any = dict(epochs=4, sizes=(8,))


def table(rows: int = 400) -> pd.DataFrame:
    """y depends on a, b and the category c, and on none of the others."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({name: random.normal(size=rows) for name in ("a", "n1", "b", "n2", "n3", "n4")})
    frame["c"] = random.choice(["u", "v", "w"], rows)
    frame["y"] = np.tanh(2 * frame["a"]) + frame["a"] * frame["b"] + 2.0 * (frame["c"] == "v")
    return frame


def series(steps: int = 150) -> pd.DataFrame:
    random, level = np.random.default_rng(0), np.zeros(steps)
    for t in range(steps):
        level[t] = 0.9 * level[t - 1] * (t > 0) - 0.5 * level[t - 4] * (t > 3) + random.normal()
    return pd.DataFrame(dict(year=1900 + np.arange(steps), level=level))


@pytest.fixture(autouse=True)
def few_points(monkeypatch):
    """A path of large steps."""
    monkeypatch.setattr(_path, "GROWTH", 1.6)
    monkeypatch.setattr(_path, "STEPS", 60)


def test_a_search_finds_the_columns_that_matter(tmp_path):
    found = rv.search(table(), target="y", epochs=40, sizes=(24,), out=tmp_path / "run")
    assert found.metrics["search"]["by"] == "units"
    survivors = found.metrics["search"]["survivors"]["inputs"]
    names = survivors.split(" (")[0].split(", ")
    assert {"a", "b", "c"} <= set(names)
    assert len(names) < 7
    full, *others = found.metrics["search"]["candidates"]
    chosen = next(c for c in others if c["name"] == found.metrics["search"]["chosen"])
    assert chosen["weights"] == found.machine.system.entries < full["weights"]
    assert chosen["error"] <= min(c["error"] + c["error_spread"] for c in (full, *others) if "random" not in c["name"])
    again = open_run(tmp_path / "run")
    only: Any = table()[names]
    np.testing.assert_array_equal(again.predict(only)["prediction"], again.predict(table())["prediction"])
    assert np.corrcoef(again.predict(only)["prediction"], table()["y"])[0, 1] > 0.95


def test_each_point_is_a_run_and_the_page_has_all(tmp_path):
    found = rv.search(series(), target="level", by="edges", lags=4, out=tmp_path / "run", **SHORT)
    folder = tmp_path / "run"
    files = {path.name for path in folder.iterdir()}
    pictures = {"curve.svg", "connections.svg", "weights.svg", "network.svg"}
    data = {"machine.json", "weights.safetensors", "preprocessing.json", "settings.json", "metrics.json"}
    assert files == pictures | data | {"search.html", "checkpoints", "points"}
    page = (folder / "search.html").read_text()
    rows = candidates_table(found.metrics["search"]["candidates"], found.metrics["search"]["chosen"])
    assert all(cell in page for row in rows for cell in row)
    assert "autoregression over 5 steps" in page
    folders = sorted((folder / "points").iterdir())
    assert len(folders) == len(found.points) > 1
    weights = [point.machine.system.entries for point in found.points]
    assert weights == sorted(weights, reverse=True)
    for path, point in zip(folders, found.points, strict=True):
        again = open_run(path)
        assert torch.equal(again.machine.weight, point.machine.weight)
        assert again.metrics == json.loads(json.dumps(point.metrics))
        assert again.predict(series())["row"].iloc[-1] == 151
    for name, c in ((c["name"], c) for c in found.metrics["search"]["candidates"]):
        if name.startswith("random"):
            point = name.replace("random", "point")
            assert c["weights"] <= next(
                o["weights"] for o in found.metrics["search"]["candidates"] if o["name"] == point
            )


def test_each_epoch_of_the_path_has_an_order_of_its_own(monkeypatch, tmp_path):
    orders, randperm = [], torch.randperm

    def seen(count: int, **options: Any) -> torch.Tensor:
        orders.append(tuple(randperm(count, **options).tolist()))
        return torch.tensor(orders[-1])

    settings, split, search = searching(series(), target="level", lags=2)
    network = network_of(search.data, settings, split, 0, sequential=False)
    monkeypatch.setattr(torch, "randperm", seen)
    monkeypatch.setattr(_path, "KEPT", 2.0)  # the first penalty keeps its machine
    options: Any = dict(by="lags", lr=3e-3, batch_size=32, seed=0, device="cpu", image=False, bar=False)
    next(_path.path(network, rows_of(split, "train", 2), tmp_path, **options))
    assert len({*orders}) == len(orders) > 2


@pytest.mark.parametrize("kept", [0, 1])
def test_a_search_that_was_stopped_goes_on_to_the_same_numbers(kept, tmp_path, monkeypatch):
    options: Any = dict(target="level", by="lags", lags=3, **SHORT)
    whole = rv.search(series(), out=tmp_path / "whole", **options)
    save, count = torch.save, 0

    def dying(state: Any, path: Any) -> None:
        nonlocal count
        if "path.ckpt" in str(path) and state["at"]["kept"] == kept:
            count += 1
            if count == 2:
                raise KeyboardInterrupt
        save(state, path)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", dying)
        with pytest.raises(KeyboardInterrupt):
            rv.search(series(), out=tmp_path / "stopped", **options)
    with pytest.raises(ValueError, match="has lags=3, not 2"):
        rv.search(series(), resume=True, out=tmp_path / "stopped", **options | dict(lags=2))
    with pytest.raises(ValueError, match=r"the run in .*stopped is a search, go on with it as one"):
        rv.train(series(), target="level", resume=True, out=tmp_path / "stopped")
    resumed = rv.search(series(), resume=True, out=tmp_path / "stopped")
    assert resumed.metrics == whole.metrics
    assert torch.equal(resumed.machine.weight, whole.machine.weight)


def test_nothing_smaller_is_said_to_be_enough_where_it_is_not():
    """Of one machine along the path, worse than the full one by far."""
    settings, split, search = searching(series(), target="level", lags=3)
    model = linear(split, 3)
    good = search.measured("full machine", model.outputs, split, None, 8, 4, 0)
    bad = good._replace(name="point 1", arithmetic=2, error=good.error + 2 * good.error_spread)
    assert search.smallest([good, bad]).name == "full machine"
    assert search.smallest([good, bad._replace(error=good.error + 0.9 * good.error_spread)]).name == "point 1"
    candidates = [good, good._replace(name="sequential network"), good._replace(name="least squares"), bad]
    verdict = good.verdict(candidates, good, "lags")
    assert verdict.startswith("Searched by lags, nothing smaller is as good as the full machine: R²")
    assert verdict.endswith("On the validation rows, least squares is as good, within a standard error.")
    better = [
        *candidates[:2],
        candidates[2]._replace(error=good.error / 2),
        bad,
        bad._replace(name="random 1", error=0.0),
    ]
    verdict = bad.verdict(better, bad, "lags")
    assert verdict.startswith("Searched by lags, 4 of 4 weights (100 %) are enough: R²")
    assert verdict.endswith(
        "The random choice is as good on the validation rows. On the validation rows, least squares is better."
    )
    assert bad.verdict(better, good, "lags").startswith("Point 1 of a search by lags, which found full machine: 4 of 4")
    assert settings.lags == 3


def test_a_machine_that_tuning_makes_worse_stays_as_it_came(monkeypatch, tmp_path):
    settings, split, search = searching(series(), target="level", lags=3)
    search.folder = tmp_path

    def spoil(network: Any, *args: Any, **options: Any) -> Any:
        with torch.no_grad():
            network.machine.weight.add_(1.0)
        return [dict(val_loss=1e9)]

    monkeypatch.setattr(sys.modules["resolvent.training.search"], "fit", spoil)
    network = network_of(search.data, settings, split, 0, sequential=False)
    before = network.machine.weight.detach().clone()
    assert torch.equal(search.trained("point 1", network, split, "point-0").machine.weight, before)


def test_a_baseline_that_diverges_ends_no_search_and_one_that_was_stopped_comes_again(monkeypatch, tmp_path):
    module = sys.modules["resolvent.training.search"]
    fit, options = module.fit, dict(target="level", by="lags", lags=2, epochs=2, sizes=(4,))
    whole = rv.search(series(), out=tmp_path / "whole", **options)

    def dying(network: Any, *args: Any, title: str, **rest: Any) -> Any:
        if title == "sequential network":
            raise KeyboardInterrupt
        return fit(network, *args, title=title, **rest)

    monkeypatch.setattr(module, "fit", dying)
    with pytest.raises(KeyboardInterrupt):
        rv.search(series(), out=tmp_path / "stopped", **options)
    monkeypatch.setattr(module, "fit", fit)
    assert rv.search(series(), out=tmp_path / "stopped", resume=True).metrics == whole.metrics

    def diverging(network: Any, *args: Any, title: str, **rest: Any) -> Any:
        if title == "sequential network":
            raise Diverged("its loss is not finite")
        return fit(network, *args, title=title, **rest)

    monkeypatch.setattr(module, "fit", diverging)
    found = rv.search(series(), **options)
    assert found.metrics["search"]["candidates"][1]["epochs"] == 0
    assert torch.equal(found.machine.weight, whole.machine.weight)


def searching(frame: pd.DataFrame, target: str, **given: Any) -> Any:
    data = read(frame, target)
    unknown = dict.fromkeys(["target", "machine", "lags", "device"])
    settings = choose(unknown | given, data, "data")
    split = divide(data, settings)
    return settings, split, _Search(data, settings, split, Path(), False)


def test_autoregression_is_least_squares_of_the_steps_before():
    _, split, _ = searching(series(), target="level", lags=2)
    model = linear(split, 2)
    assert (model.name, model.weights) == ("autoregression over 3 steps", 3)
    x, rows = split.inputs[:, 0].double().numpy(), split.rows["train"][3:]
    past = np.stack([x[rows - 1], x[rows - 2], x[rows - 3], np.ones(len(rows))], 1)
    solution, *_ = np.linalg.lstsq(past, split.goals[rows, 0].double().numpy(), rcond=None)
    np.testing.assert_allclose(model.outputs["train"][:, 0], past @ solution, rtol=1e-6, atol=1e-8)
    r = split.rows["test"]
    expected = np.stack([x[r - 1], x[r - 2], x[r - 3], np.ones(len(r))], 1) @ solution
    np.testing.assert_allclose(model.outputs["test"][:, 0], expected, rtol=1e-6, atol=1e-8)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(by="rows"), "by='rows' is unknown: use 'units', 'edges' or 'lags'"),
        (dict(by="lags"), "by='lags' is for recurrent machines, this one is dense: use 'units' or 'edges'"),
        (dict(out="taken"), "out=taken exists and is not empty"),
    ],
)
def test_a_search_that_cannot_be_is_refused(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ValueError, match=message):
        rv.search(table(60), target="y", **options)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="a search runs in one process, here are WORLD_SIZE=2"):
        rv.search(table(60), target="y")


def test_convolutions_of_images_are_searched_by_units_with_all_of_the_image():
    found = rv.search("digits", epochs=1, sizes=(6,), seed=1)
    assert isinstance(found.machine, rv.ConvMachine)
    assert all(p.machine.partition.sizes[0] == 1 for p in found.points)
    assert found.points[-1].metrics["search"]["survivors"]["inputs"] == "the whole image"
