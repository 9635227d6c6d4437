"""The command: what it prints, writes and refuses."""

import subprocess
import sys
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import resolvent as rv
from resolvent import cli
from resolvent.studies.benchmark import measure as _run
from resolvent.studies.benchmark.cases import PAPER
from resolvent.training import EMBEDDED, open_run, read

pytestmark = pytest.mark.unchecked


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Runs `resolvent …` in an empty folder; returns the exit status, what was printed, and what was complained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.console, "_width", 200)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["resolvent", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.run()
        return left.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Small finished runs, by the name of their data."""
    from resolvent.training import train

    folder = tmp_path_factory.mktemp("runs")
    for name in ("digits", "diabetes", "sunspots"):
        train(name, epochs=1, sizes=(4, 4), out=folder / name)
    return folder


@pytest.mark.parametrize("name", ["train", "predict", "show", "export", "bench", "paper"])
def test_each_command_has_help_with_an_example(name, command):
    status, output, _ = command(name, "--help")
    assert status == 0
    assert f"Example: resolvent {name}" in output


def test_unknown_options_and_values_are_refused(command):
    status, _, complaint = command("train", "--epoch", 3)
    assert status == 2
    assert "No such option" in complaint
    status, _, complaint = command("train", "--machine", "transformer")
    assert status == 2
    assert "'dense', 'conv', 'recurrent'" in complaint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "nothing.csv"], "error: nothing.csv does not exist; embedded are digits, diabetes, sunspots\n"),
        (["train", "--sizes", "4;4"], "error: --sizes '4;4' must be whole numbers with commas between, as 64,64,64\n"),
        (["train", "--resume"], "error: there is no unfinished run of digits in runs: name its folder with --out\n"),
        (["predict", "nothing", "digits"], "error: nothing should be the folder of a run, but is not one\n"),
        (["show", "nothing"], "error: nothing should be the folder of a run, but is not one\n"),
        (["export", "nothing", "--onnx", "a"], "error: nothing should be the folder of a run, but is not one\n"),
        (["bench", "--only", "nothing"], "error: no case for cpu has 'nothing' in its name: dense small, dense medium"),
        (
            ["bench", "--jets", "--only", "nothing"],
            "error: no case with jets has 'nothing' in its name: Laplacian",
        ),
        (
            ["bench", "--jets", "--large"],
            "error: --jets measures its own rows on the CPU: it takes --quick, --only",
        ),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(arguments, message, command, tmp_path):
    status, _, complaint = command(*arguments)
    assert status == 1
    assert complaint.startswith(message)
    assert complaint.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_train_writes_to_the_next_free_folder(command, tmp_path):
    for folder in ("diabetes", "diabetes-2"):
        status, output, _ = command("train", "diabetes", "--epochs", 1, "--sizes", "4,4")
        assert status == 0
        assert "diabetes: regression of 'progression', 442 rows, 10 columns" in output
        assert "dense machine 10 → 4 → 4 → 1" in output
        assert "was better by" in output
        assert f"report in runs/{folder}/report.html" in output
        assert (tmp_path / "runs" / folder / "report.html").is_file()


def test_predict_takes_columns_in_any_order_and_names_missing_ones(command, runs, tmp_path):
    table = read("diabetes").inputs
    table[table.columns[::-1]].to_csv(tmp_path / "new.csv", index=False)
    status, output, _ = command("predict", runs / "diabetes", "new.csv", "--out", "predicted.csv")
    assert (status, output) == (0, "442 predictions of progression in predicted.csv\n")
    expected = open_run(runs / "diabetes").predict(table)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "predicted.csv"), expected, check_dtype=False, rtol=1e-4)
    table.drop(columns=["bmi", "s1"]).to_csv(tmp_path / "new.csv", index=False)
    status, _, complaint = command("predict", runs / "diabetes", "new.csv")
    assert (status, complaint) == (1, "error: the data lacks the columns bmi, s1\n")
    status, _, complaint = command("predict", runs / "diabetes", "diabetes", "--out", "no/where.csv")
    assert (status, complaint) == (1, "error: the folder no does not exist\n")


def test_show_prints_the_machine_and_writes_its_pictures(command, runs, tmp_path):
    status, output, _ = command("show", runs / "sunspots", "--pictures", "pictures")
    assert status == 0
    for text in ("1 → 4 → 4 → 1", "[identity, tanh, tanh, identity]", "strongest shortcuts", "at lag", "rmse"):
        assert text in output
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"weights.svg", "network.svg"}


@pytest.mark.parametrize("name", ["digits", "diabetes"])
def test_an_exported_run_predicts_the_same(name, command, runs, tmp_path):
    import onnxruntime

    status, output, _ = command("export", runs / name, "--onnx", "net.onnx")
    assert status == 0
    assert "preprocessing.json" in output
    trained = open_run(runs / name)
    x = trained.preprocessing.inputs(read(name).inputs)[:5].astype(np.float32)
    actual: Any
    (actual,) = onnxruntime.InferenceSession(tmp_path / "net.onnx").run(["prediction"], {"x": x})
    expected = trained.predict(read(name).inputs.head(5))
    expected = expected.iloc[:, 1:] if name == "digits" else expected[["prediction"]]
    np.testing.assert_allclose(actual, expected.to_numpy(float), rtol=1e-4, atol=1e-5)


def test_export_says_what_to_install(command, runs, monkeypatch):
    from resolvent.sharing import onnx

    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    status, _, complaint = command("export", runs / "diabetes", "--onnx", "net.onnx")
    assert (status, complaint) == (1, "error: ONNX files need onnx, which the extra [onnx] installs\n")


def test_an_exported_series_goes_step_by_step(command, runs, tmp_path):
    import onnxruntime

    assert command("export", runs / "sunspots", "--onnx", "net.onnx")[0] == 0
    trained = open_run(runs / "sunspots")
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    x = trained.preprocessing.inputs(read("sunspots").inputs)[:9].astype(np.float32)
    state = np.zeros((1, 3, trained.machine.partition.total), np.float32)
    predicted = []
    for row in x:
        value: Any
        value, state = session.run(["prediction", "next_state"], {"x": row[None], "state": state})
        predicted.append(float(value[0, 0]))
    expected = trained.predict(read("sunspots").inputs.head(9))["prediction"]
    np.testing.assert_allclose(predicted, expected, rtol=1e-4)


def test_bench_measures_and_draws(command, tmp_path):
    status, output, _ = command("bench", "--quick", "--only", "dense small", "--out", "results")
    assert status == 0
    assert "loop" in output
    rows = pd.read_csv("results/cpu-quick.csv")
    assert {"machine", "passes", "loop", "layer", "limit"} <= set(rows["program"])
    assert min(rows["forward (µs)"]) > 0
    assert max(rows["residual"]) < 1e-4
    assert {path.name for path in (tmp_path / "results").iterdir()} == {"cpu-quick.csv", "runtimes.svg", "ratios.svg"}


def test_what_is_timed_together_takes_turns():
    called = []
    times = _run.timed([lambda: called.append("forward"), lambda: called.append("backward")], False, 0)
    turns = [name for name, _ in groupby(called)]
    assert turns == ["forward", "backward"] * 4  # one to see how long a call takes, and three that are timed
    assert all(0 < q1 <= median <= q3 for q1, median, q3 in times)


def test_a_program_with_a_wrong_gradient_reports_no_time(monkeypatch):
    cotangent = rv.DenseMachine.weight_cotangent
    monkeypatch.setattr(rv.DenseMachine, "weight_cotangent", lambda *args: cotangent(*args) * 1.001)
    rows = list(_run.measure(PAPER[0], torch.float64, "cpu", 0.001, 0, {}))
    errors = {row["program"]: row.get("error") for row in rows}
    assert errors.pop("passes") is None  # to which the others are compared
    assert (
        errors.pop("machine")
        == errors.pop("loop")
        == "the weights' gradients differ in norm from the machine's by 1.0e-03"
    )
    assert not any(key.endswith("(µs)") for row in rows if row.get("error") for key in row)


@pytest.mark.parametrize(
    ("missing", "of"), [("typer", "cli"), ("pandas", "training"), ("matplotlib.figure", "studies")]
)
def test_the_command_says_what_to_install_where_its_libraries_are_missing(missing, of, monkeypatch):
    from resolvent.__main__ import main

    for name in [name for name in sys.modules if name.startswith(f"resolvent.{of}")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(f"resolvent.{of}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(sys, "argv", ["resolvent", "bench" if of == "studies" else "train"])
    with pytest.raises(SystemExit, match=rf"error: the command needs {missing}, which the extra \[train\] installs"):
        main()


def test_help_names_the_embedded_sets_and_does_not_wait_for_what_commands_import(command):
    status, output, _ = command("train", "--help")
    assert status == 0
    assert all(name in output for name in EMBEDDED)
    code = "import sys; from resolvent import cli; sys.exit('lightning' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_train_says_what_to_install_where_its_libraries_are_missing(monkeypatch):
    import resolvent as rv

    for name in [name for name in sys.modules if name.startswith("resolvent.training")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"rv\.train needs pandas, which the extra \[train\] installs"):
        _ = rv.train


def test_brackets_in_names_are_printed_as_they_are(command, tmp_path):
    table = pd.DataFrame({"a": np.arange(60.0), "speed [/m]": np.arange(60.0) ** 2})
    table.to_csv(tmp_path / "data.csv", index=False)
    status, output, _ = command("train", "data.csv", "--target", "speed [/m]", "--epochs", 1, "--out", "run [/x]")
    assert status == 0
    assert "speed [/m], 12 test rows" in output
    assert "run [/x]/report.html" in output


def test_predictions_overwrite_neither_the_data_nor_a_folder(command, runs, tmp_path):
    read("diabetes").inputs.to_csv(tmp_path / "new.csv", index=False)
    before = (tmp_path / "new.csv").read_bytes()
    for out, problem in (("new.csv", "the data itself"), (tmp_path, "a folder")):
        status, _, complaint = command("predict", runs / "diabetes", "new.csv", "--out", out)
        assert (status, complaint) == (1, f"error: --out {out} is {problem}\n")
    assert (tmp_path / "new.csv").read_bytes() == before


def test_show_opens_the_report(command, runs, monkeypatch):
    opened = []
    monkeypatch.setattr(cli.data.webbrowser, "open", lambda url: opened.append(url) or True)
    assert command("show", runs / "digits", "--open")[0] == 0
    assert opened == [(runs / "digits" / "report.html").as_uri()]
    monkeypatch.setattr(cli.data.webbrowser, "open", lambda url: False)
    status, _, complaint = command("show", runs / "digits", "--open")
    assert (status, complaint.startswith("error: no browser could be opened for")) == (1, True)


def test_search_prints_what_survives_and_writes_the_page(command, tmp_path):
    x = np.random.default_rng(0).normal(size=(80, 3))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "speed [/m]": x[:, 0] ** 2}).to_csv(tmp_path / "data.csv", index=False)
    options = ("--target", "speed [/m]", "--epochs", 2, "--sizes", "4", "--by", "edges")
    status, output, _ = command("search", "data.csv", *options)
    assert status == 0
    assert "searched by edges" in output
    assert "least squares" in output
    assert "report in runs/data-search/search.html" in output
    assert (tmp_path / "runs" / "data-search" / "search.html").is_file()
    assert command("show", "runs/data-search")[0] == 0
    status, output, _ = command("predict", "runs/data-search/points/01", "data.csv")
    assert "80 predictions of speed [/m]" in output
    status, _, complaint = command("search", "data.csv", "--target", "speed [/m]", "--by", "lags")
    assert (status, complaint.startswith("error: by='lags' is for recurrent machines")) == (1, True)
