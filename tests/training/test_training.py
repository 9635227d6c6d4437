"""One call trains a machine on data, and can be stopped at any moment."""

import copy
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tolerance import assert_equal

import resolvent as rv
from resolvent.training import fit as _fit
from resolvent.training import measure as _measure
from resolvent.training import network as _network
from resolvent.training import open_run, read
from resolvent.training import settings as _settings
from resolvent.training import split as _split

PICTURES = {"learning-curve.svg", "weights.svg", "network.svg"}
FILES = {"machine.json", "weights.safetensors", "preprocessing.json", "settings.json", "metrics.json", "report.html"}


def series(steps=120):
    t = np.arange(steps)
    return pd.DataFrame(dict(year=1900 + t, other=np.cos(t / 5), level=np.sin(t / 4)))


def test_defaults_reach_96_percent_on_digits(tmp_path):
    trained = rv.train(out=tmp_path / "run")
    assert isinstance(trained.machine, rv.ConvMachine)
    assert trained.metrics["notes"] == ["1,797 handwritten digits of 8×8 pixels (UCI, from scikit-learn)"]
    (score,) = trained.metrics["machine"]["seeds"]
    assert score["accuracy"] >= 0.96
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == FILES | PICTURES | {"confusion.svg", "checkpoints"}
    loaded = rv.load(tmp_path / "run")
    assert_equal(loaded.weight, trained.machine.weight)
    again = open_run(tmp_path / "run")
    predicted = again.predict(read("digits").inputs)
    assert list(predicted.columns) == ["prediction", *(f"probability of {i}" for i in range(10))]
    assert np.mean(predicted["prediction"].to_numpy() == read("digits").target.to_numpy()) > 0.97
    np.testing.assert_allclose(predicted.iloc[:, 1:].sum(axis=1).astype(float), 1, rtol=1e-5)


def test_a_table_with_categories_and_missing_values(tmp_path):
    random = np.random.default_rng(0)
    table = pd.DataFrame(dict(a=random.normal(size=400), b=random.choice(["x", "y", "z"], 400)))
    table["price"] = 3 * table["a"] + 5.0 * (table["b"] == "y") - 5.0 * (table["b"] == "z") + 100
    table.loc[::50, "a"] = np.nan
    trained = rv.train(table, target="price", epochs=30, sizes=(16,), activation="tanh", out=tmp_path / "run")
    assert isinstance(trained.machine, rv.DenseMachine)
    assert trained.machine.partition.sizes == (4, 16, 1)
    assert trained.metrics["machine"]["seeds"][0]["r2"] > 0.9
    assert (tmp_path / "run" / "predictions.svg").is_file()
    predicted = trained.predict(table.drop(columns="price")[["b", "a"]])["prediction"]
    assert np.corrcoef(predicted, table["price"])[0, 1] > 0.95


@pytest.mark.parametrize(("machine", "kind"), [(None, rv.RecurrentMachine), ("conv", rv.ConvMachine)])
def test_a_series_is_forecast_from_its_past_alone(machine, kind, tmp_path):
    table = series()
    trained = rv.train(table, target="level", machine=machine, epochs=30, lags=2, out=tmp_path / "run")
    assert isinstance(trained.machine, kind)
    assert (tmp_path / "run" / "forecast.svg").is_file()
    before = trained.predict(table)
    assert before["row"].tolist() == list(range(2, 122))
    table.loc[80:, ["level", "other"]] = 9.0
    after = trained.predict(table)
    np.testing.assert_array_equal(before["prediction"][:80], after["prediction"][:80])
    assert not np.allclose(before["prediction"][80:], after["prediction"][80:])


def test_sunspots_are_forecast_better_than_by_the_year_before():
    metrics = rv.train("sunspots").metrics
    assert metrics["machine"]["seeds"][0]["rmse"] < 0.8 * metrics["naive"]["rmse"]


def test_the_measured_forecasts_are_those_of_predict():
    data = read("sunspots")
    trained = rv.train("sunspots", epochs=3)
    steps = trained.metrics["rows"]["test"]
    predicted = trained.predict(data.inputs)["prediction"].to_numpy()[-steps - 1 : -1]
    rmse = np.sqrt(np.mean((predicted - data.target.to_numpy()[-steps:]) ** 2))
    np.testing.assert_allclose(trained.metrics["machine"]["seeds"][0]["rmse"], rmse, rtol=1e-5)


@pytest.mark.parametrize(
    "machine",
    [
        rv.DenseMachine((10, 32, 32, 1)),
        rv.DenseMachine((3, 8, 1)),
        rv.ConvMachine((1, 16, 16, 16, 10), kernel_size=(3, 3)),
        rv.RecurrentMachine((2, 16, 16, 1), lags=3),
    ],
    ids=str,
)
def test_the_classical_network_has_as_many_parameters(machine):
    classical = _network.sequential_like(machine).machine
    count, other = _network.parameters_read(machine), _network.parameters_read(classical)
    assert type(classical) is type(machine)
    assert len(classical.partition) == len(machine.partition)
    assert abs(count - other) <= 0.12 * count
    read_part = machine.operator.mask(machine.connections.expand(machine.partition)).sum().item()
    assert count == read_part + machine.partition.total
    assert not _network.shortcuts(classical)


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = torch.get_rng_state()
    trained = rv.train("diabetes", epochs=2, seeds=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert not list(tmp_path.iterdir())
    assert trained.folder is None
    assert [run["seed"] for run in trained.metrics["machine"]["seeds"]] == [0, 1]
    assert "± " in trained.metrics["verdict"]


def test_the_same_seed_gives_the_same_numbers():
    a, b, c = (rv.train("diabetes", epochs=2, seed=seed).metrics for seed in (3, 3, 4))
    assert a == b
    assert a["machine"]["seeds"] != c["machine"]["seeds"]


def verdict(machine, sequential, task="classification", naive=None):
    key = "accuracy" if task == "classification" else "rmse"
    seeds = {"machine": machine, "sequential": sequential}
    runs = {name: dict(sizes=name, seeds=[{key: value} for value in values]) for name, values in seeds.items()}
    guess = {"guess": "the mean", key: (0.1 if task == "classification" else 9.0) if naive is None else naive}
    return _measure.verdict(dict(task=task, rows=dict(test=100), naive=guess, **runs))


def test_the_verdict_says_who_was_better_and_by_how_much():
    assert verdict([0.9], [0.85]).startswith("The machine was better by 5.0 points (5 of 100 test rows)")
    assert verdict([0.85], [0.9]).startswith("The sequential network was better by 5.0 points")
    assert verdict([0.9], [0.9]).startswith("Both networks are equal")
    assert verdict([1.0], [3.0], "regression").startswith(
        "The machine was better by 2: rmse 1 (machine), 3 (sequential)"
    )
    assert verdict([0.9, 0.8, 0.9], [0.85, 0.85, 0.84]).startswith("The machine was better by 2.0 ± 15.1 points (95 %")
    assert "may be chance" in verdict([0.9, 0.8, 0.9], [0.85, 0.85, 0.84])
    assert "may be chance" not in verdict([0.9, 0.91, 0.9], [0.8, 0.809, 0.8])
    assert verdict([0.8], [0.7], naive=0.9).endswith("Neither beats the mean: accuracy 90.0%.")
    assert verdict([3.0], [2.0], "regression", naive=1.0).endswith("Neither beats the mean: rmse 1.")
    assert "Neither" not in verdict([3.0], [2.0], "regression", naive=2.5)


def test_two_sequential_networks_are_not_compared():
    trained = rv.train("diabetes", epochs=1, connections="sequential")
    assert trained.metrics["verdict"].startswith("Both are the same sequential network")


def test_a_diverging_run_says_so_and_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="training diverged: its loss is not finite"):
        rv.train("diabetes", lr=1e30, epochs=3, activation="relu", out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_large_offset_of_the_target_costs_no_precision():
    x = np.random.default_rng(0).normal(size=200)
    runs = [rv.train(pd.DataFrame(dict(a=x, y=x + offset)), target="y", epochs=5) for offset in (0.0, 1e8)]
    plain, offset = (run.metrics["machine"]["seeds"][0]["rmse"] for run in runs)
    np.testing.assert_allclose(offset, plain, rtol=1e-3)


def test_lags_longer_than_a_stretch_are_trained():
    table = pd.DataFrame(dict(year=range(400), y=np.sin(np.arange(400) / 5)))
    rates = (1e-3, 2e-3)
    one, two = (rv.train(table, target="y", lags=80, epochs=1, lr=lr, sizes=(4,)).machine.weight for lr in rates)
    assert (one != two).flatten(1).any(1).all()


def test_validation_counts_its_own_part_alone():
    data = read("sunspots")
    given = dict.fromkeys(field.name for field in dataclasses.fields(_settings.Settings))
    settings = _settings.choose(given, data, "sunspots")
    parts = _split.divide(data, settings)
    targets = _split.rows_of(parts, "validation").targets.flatten()
    assert_equal(targets[~targets.isnan()], parts.goals[parts.rows["validation"]].flatten())


def test_the_seed_decides_the_order_of_rows(tmp_path):
    generator = torch.Generator().manual_seed(0)
    rows = _fit.Rows(torch.randn(64, 3, generator=generator), torch.randn(64, 1, generator=generator))
    network = _network.build("dense", 3, (4,), 1, "tanh", "all")
    options: Any = dict(epochs=1, lr=1e-2, batch_size=8, device="cpu", title="", progress=False)
    seeds = {"a": 0, "again": 0, "b": 1}
    losses = {
        name: _fit.fit(copy.deepcopy(network), rows, rows, tmp_path / name, seed=seed, **options)
        for name, seed in seeds.items()
    }
    assert losses["a"] == losses["again"] != losses["b"]


def test_settings_of_pytorch_stay_the_callers():
    rv.train("diabetes", epochs=1)
    assert not torch.are_deterministic_algorithms_enabled()


def interrupt_at(epoch):
    def hook(training):
        if training.current_epoch == epoch:
            raise KeyboardInterrupt

    return hook


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("metrics.json", lambda _: {}, "metrics.json does not have the metrics of a run"),
        ("metrics.json", lambda _: None, "metrics.json does not have the metrics of a run"),
        ("preprocessing.json", lambda old: old | dict(columns=[]), "its columns, classes or numbers are wrong"),
        ("preprocessing.json", lambda old: old | dict(mean="x"), "its columns, classes or numbers are wrong"),
        ("preprocessing.json", lambda old: old | dict(columns=old["columns"][:3]), "is for 3 inputs and 1 outputs"),
        ("preprocessing.json", lambda old: old | dict(classes=[1, 2]), "is for 10 inputs and 2 outputs"),
    ],
)
def test_a_tampered_run_is_refused(file, change, message, tmp_path):
    rv.train("diabetes", epochs=1, out=tmp_path / "run")
    path = tmp_path / "run" / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(ValueError, match=message):
        open_run(tmp_path / "run")


class TestResume:
    def command(self, *arguments):
        return [sys.executable, "-m", "resolvent", "train", *map(str, arguments)]

    def start(self, folder, *arguments):
        """A run that has just written the checkpoint of its first epoch."""
        command = self.command("sunspots", "--epochs", 8, "--seeds", 2, "--out", folder, *arguments)
        hear_ctrl_c = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where tests run in the background
        options: Any = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=hear_ctrl_c)
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # as here: sums depend on it
        process = subprocess.Popen(command, env=one_thread, **options)
        while not (folder / "checkpoints" / "machine-0" / "last.ckpt").exists():
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.01)
        return process

    @pytest.mark.unchecked
    def test_a_killed_run_ends_with_the_numbers_of_an_unbroken_one(self, tmp_path):
        rv.train("sunspots", epochs=8, seeds=2, out=tmp_path / "unbroken")
        process = self.start(tmp_path / "killed")
        process.kill()
        process.communicate()
        assert not (tmp_path / "killed" / "metrics.json").exists()
        rv.train(out=tmp_path / "killed", resume=True)
        for name in ("metrics.json", "weights.safetensors", "machine.json", "preprocessing.json", "learning-curve.svg"):
            assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "unbroken" / name).read_bytes(), name

    def test_a_run_killed_at_its_end_or_moved_ends_with_the_same_numbers(self, tmp_path):
        """At its end: after the last epoch of an early stop, before that is noted."""
        unbroken = rv.train("diabetes", epochs=40, batch_size=8, sizes=(64, 64), out=tmp_path / "run").metrics
        assert unbroken["machine"]["seeds"][0]["epochs"] < 40
        folder = tmp_path / "moved"
        (tmp_path / "run").rename(folder)
        (folder / "metrics.json").unlink()
        (folder / "checkpoints" / "machine-0" / "finished.json").unlink()
        assert rv.train(out=folder, resume=True).metrics == unbroken

    def test_a_moved_run_keeps_its_best_epoch(self, tmp_path):
        unbroken = rv.train("diabetes", epochs=12, out=tmp_path / "unbroken").metrics
        folder = tmp_path / "stopped"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_fit.Training, "on_train_epoch_start", interrupt_at(9), raising=False)
            with pytest.raises(KeyboardInterrupt):
                rv.train("diabetes", epochs=12, out=folder)
        moved = folder.rename(tmp_path / "moved")
        assert rv.train(out=moved, resume=True).metrics == unbroken

    def test_the_last_checkpoint_knows_the_best_one(self, tmp_path):
        rv.train("diabetes", epochs=3, out=tmp_path / "run")
        folder = tmp_path / "run" / "checkpoints" / "machine-0"
        losses = [epoch["val_loss"] for epoch in json.loads((folder / "finished.json").read_text())]
        callbacks = torch.load(folder / "last.ckpt", weights_only=True)["callbacks"]
        (best,) = (state for name, state in callbacks.items() if "'val_loss'" in name and "best_model_score" in state)
        assert losses[-1] == min(losses)
        assert best["best_model_score"].item() == min(losses)

    def test_a_damaged_checkpoint_is_named(self, tmp_path):
        folder = tmp_path / "run"
        rv.train("diabetes", epochs=1, out=folder)
        (folder / "metrics.json").unlink()
        for name, marker in (("best.ckpt", True), ("last.ckpt", False)):
            (folder / "checkpoints" / "machine-0" / name).write_bytes(b"PK")
            if not marker:
                (folder / "checkpoints" / "machine-0" / "finished.json").unlink()
            with pytest.raises(ValueError, match=rf"{name} is damaged: remove .*machine-0 to train this network again"):
                rv.train(out=folder, resume=True)

    @pytest.mark.unchecked
    def test_ctrl_c_stops_and_says_how_to_go_on(self, tmp_path):
        process = self.start(tmp_path / "run", "--seeds", 9)
        process.send_signal(signal.SIGINT)
        output = process.communicate()[0]
        assert process.returncode == 130
        assert f"go on with: resolvent train --resume --out {tmp_path / 'run'}" in output
        assert "Traceback" not in output

    def test_nothing_may_contradict_the_run(self, tmp_path):
        table = series()
        folder = tmp_path / "run"
        rv.train(table, target="level", epochs=1, out=folder)
        with pytest.raises(ValueError, match="is finished"):
            rv.train(table, out=folder, resume=True)
        with pytest.raises(ValueError, match="exists and is not empty: name another one"):
            rv.train(table, target="level", out=folder)
        (folder / "metrics.json").unlink()
        with pytest.raises(ValueError, match="exists and is not empty: go on with it by --resume"):
            rv.train(table, target="level", out=folder)
        with pytest.raises(ValueError, match="has epochs=1, not 2"):
            rv.train(table, out=folder, resume=True, epochs=2)
        with pytest.raises(ValueError, match="a data frame has changed since the run"):
            rv.train(table.assign(level=table["level"] + 1), out=folder, resume=True)
        with pytest.raises(FileNotFoundError, match="is not finished: go on with --resume"):
            open_run(folder)
        rv.train(table, out=folder, resume=True)
        open_run(folder)
        with pytest.raises(ValueError, match="resume needs out"):
            rv.train(resume=True)
        with pytest.raises(FileNotFoundError, match="has no run to go on with"):
            rv.train(out=tmp_path / "nowhere", resume=True)


@pytest.mark.unchecked
def test_two_processes_train_together(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "resolvent", "train", "diabetes", "--epochs", "2"]
    environment = os.environ | dict(OMP_NUM_THREADS="1")
    output = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert output.returncode == 0, output.stderr
    assert output.stdout.count("progression, 89 test rows") == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["diabetes"]
    metrics = json.loads((tmp_path / "runs" / "diabetes" / "metrics.json").read_text())
    assert metrics["machine"]["seeds"][0]["epochs"] == 2
