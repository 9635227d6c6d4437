"""`train`: data in, a fitted machine, its measure beside the classical network's, and a folder that tells all, out."""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..machines.recurrent import RecurrentMachine
from ..machines.structured import StructuredMachine
from ..sharing import onnx
from ..sharing.load import load
from .data import Data, read
from .fit import Diverged, fit
from .measure import measure, naive, verdict
from .network import Model, Prediction, StepPrediction, build, parameters_read, sequential_like
from .preprocessing import Preprocessing
from .processes import processes, rank, same_for_all
from .report import scores, write_report
from .settings import (
    METRICS,
    Settings,
    check_resumed,
    choose,
    forget,
    is_unfinished,
    read_json,
    resumed,
    why_taken,
    write_json,
    write_settings,
)
from .split import Split, divide, rows_of

PREPROCESSING = "preprocessing.json"


class Trained(NamedTuple):
    """The fitted machine and its metrics; the rest is what a prediction needs."""

    machine: StructuredMachine
    metrics: dict[str, Any]
    preprocessing: Preprocessing
    folder: Path | None
    points: tuple["Trained", ...] = ()
    """Of a search, the machines along the path."""

    def __repr__(self) -> str:
        return f"Trained({self.machine}, folder={self.folder})\n{self.metrics['verdict']}"

    def onnx(self, path: str | os.PathLike) -> None:
        """Write an ONNX file from preprocessed inputs `x` to the `prediction`: probabilities, or target units.

        A recurrent machine's takes one step: with `state`, zeros at first, to `next_state`. It is left to the caller to
        go through a series, which may then have any length.
        """
        given, machine = self.preprocessing, self.machine
        meaning = machine, given.classes is not None, given.mean, given.scale
        channels, batch = machine.partition.sizes[0], {0: torch.export.Dim("batch")}
        if isinstance(machine, RecurrentMachine):
            inputs = dict(
                x=(torch.zeros(2, channels), batch), state=(machine.initial_state(2), {0: torch.export.Dim.AUTO})
            )
            onnx.write(StepPrediction(*meaning), path, inputs, ["prediction", "next_state"])
            return
        x, dynamic = torch.zeros(2, channels), batch
        if machine.kind == "conv" and given.image:
            x = torch.zeros(2, *given.image)
        elif machine.kind == "conv":
            x, dynamic = torch.zeros(2, 7, channels), batch | {1: torch.export.Dim("time")}
        onnx.write(Prediction(*meaning), path, {"x": (x, dynamic)}, ["prediction"])

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Predictions for rows with the columns of the data, in any order.

        Of a series, each row's prediction is made from the rows before it, and one row more is what comes next.
        """
        x = torch.tensor(self.preprocessing.inputs(frame), dtype=torch.float32)
        if self.preprocessing.task == "forecast":
            values = self.preprocessing.predictions(_outputs(Model(self.machine), x[None])[0].numpy())
            return pd.DataFrame({"row": range(2, len(frame) + 2), "prediction": values})
        outputs = torch.cat([_outputs(Model(self.machine), part) for part in x.split(4096)])
        predicted = pd.DataFrame({"prediction": self.preprocessing.predictions(outputs.numpy())})
        if self.preprocessing.classes is not None:
            for label, column in zip(self.preprocessing.classes, outputs.softmax(1).T, strict=True):
                predicted[f"probability of {label}"] = column.numpy()
        return predicted


def train(
    data: str | os.PathLike | pd.DataFrame | None = None,
    *,
    target: str | None = None,
    task: str | None = None,
    machine: str | None = None,
    sizes: Sequence[int] | None = None,
    activation: str | None = None,
    connections: str | None = None,
    lags: int | None = None,
    epochs: int | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    seeds: int | None = None,
    device: str | None = None,
    out: str | os.PathLike | None = None,
    resume: bool = False,
    progress: bool = False,
) -> Trained:
    """Train a machine, and the classical network with as many parameters, and measure both on rows they never saw.

    `data` is "digits", "diabetes", "sunspots", a CSV or Parquet file, or a data frame with a `target` column. `sizes`
    are the blocks between inputs and outputs. What is None is chosen by the data. `out` keeps the run, with a report;
    `resume` goes on with a run that was stopped.
    """
    given: dict[str, Any] = dict(target=target, task=task, machine=machine, activation=activation, lags=lags, lr=lr)
    given |= dict(connections=connections, epochs=epochs, batch_size=batch_size, seed=seed, seeds=seeds, device=device)
    given |= dict(sizes=None if sizes is None else tuple(sizes))
    folder = None if out is None else Path(out)
    random_state = torch.random.fork_rng(devices=range(torch.cuda.device_count()))  # the caller's stays as it is
    with processes(), random_state:
        if resume:
            data, given = resumed(folder, data, given)
        data = "digits" if data is None else data
        learned = read(data, given["target"], given["task"])
        settings = choose(given, learned, "a data frame" if isinstance(data, pd.DataFrame) else os.fspath(data))
        if resume:
            check_resumed(cast(Path, folder), settings)
        split = divide(learned, settings)
        networks = {
            (name, s): network_of(learned, settings, split, s, name == "sequential")
            for s in range(settings.seed, settings.seed + settings.seeds)
            for name in ("machine", "sequential")
        }
        taken = same_for_all(None if folder is None or resume else why_taken(folder))
        if taken:
            raise ValueError(taken)
        if progress and rank() == 0:
            announce(learned, settings, networks["machine", settings.seed].machine)
        if folder is not None:  # only here, where all is known to be well, the first file is written
            try:
                return _run(learned, settings, split, networks, folder, progress, keep=True)
            except Diverged:
                if rank() == 0:
                    forget(folder)
                raise
        with tempfile.TemporaryDirectory(prefix="resolvent-") as temporary:
            trained = _run(learned, settings, split, networks, same_for_all(Path(temporary)), progress, keep=False)
            same_for_all(None)  # the folder is gone when the first process leaves
            return trained


def open_run(folder: str | os.PathLike) -> Trained:
    """A finished run: its machine, metrics and preprocessing."""
    folder = Path(folder)
    if not (folder / METRICS).is_file():
        reason = "is not finished: go on with --resume" if is_unfinished(folder) else "is not one"
        raise FileNotFoundError(f"{folder} should be the folder of a run, but {reason}")
    machine, metrics = load(folder), read_json(folder / METRICS)
    if not isinstance(machine, StructuredMachine):
        raise ValueError(f"{folder} has a sum of machines, a run has one machine")
    try:
        preprocessing = Preprocessing.from_json(read_json(folder / PREPROCESSING))
    except ValueError as error:
        raise ValueError(f"{folder / PREPROCESSING}: {error}") from None
    outputs = 1 if preprocessing.classes is None else len(preprocessing.classes)
    inputs = preprocessing.image[0] if preprocessing.image and machine.kind == "conv" else preprocessing.features
    sizes = machine.partition.sizes
    if (inputs, outputs) != (sizes[0], sizes[-1]):
        said = f"{inputs} inputs and {outputs} outputs, the machine has {sizes[0]} and {sizes[-1]}"
        raise ValueError(f"{folder / PREPROCESSING} is for {said}")
    try:
        _ = scores(metrics), metrics["verdict"], metrics["target"]
    except (KeyError, TypeError, IndexError, AttributeError, ValueError):
        raise ValueError(f"{folder / METRICS} does not have the metrics of a run") from None
    return Trained(machine.requires_grad_(False), metrics, preprocessing, folder)


def network_of(data: Data, settings: Settings, split: Split, seed: int, sequential: bool) -> Model:
    outputs = 1 if split.preprocessing.classes is None else len(split.preprocessing.classes)
    series, options = data.task == "forecast", {}
    if settings.machine == "recurrent":
        options = dict(lags=settings.lags)
    elif settings.machine == "conv":
        options = dict(kernel_size=(settings.lags or 0) + 1, padding="causal") if series else dict(kernel_size=(3, 3))
    channels = split.inputs.shape[1 if settings.machine == "conv" and not series else -1]
    if data.image and settings.machine == "dense":
        channels = split.inputs[0].numel()
    torch.manual_seed(seed)
    network = build(
        settings.machine, channels, settings.sizes, outputs, settings.activation, settings.connections, **options
    )
    return sequential_like(network.machine) if sequential else network


def _run(
    data: Data,
    settings: Settings,
    split: Split,
    networks: dict[tuple[str, int], Model],
    folder: Path,
    progress: bool,
    keep: bool,
) -> Trained:
    if rank() == 0:
        write_settings(folder, settings)
    train, validation = rows_of(split, "train", settings.lags or 0), rows_of(split, "validation")
    test = split.rows["test"]
    metrics: dict[str, Any] = dict(data=settings.data, task=data.task, target=str(data.target.name))
    metrics |= dict(rows={part: len(rows) for part, rows in split.rows.items()}, notes=list(data.notes))
    curves: dict[str, list[dict[str, float]]] = {}
    predicted = None
    for (name, seed), network in networks.items():
        history = fit(
            network,
            train,
            validation,
            folder / "checkpoints" / f"{name}-{seed}",
            epochs=settings.epochs,
            lr=settings.lr,
            batch_size=settings.batch_size,
            seed=seed,
            device=settings.device,
            title=f"{name}, seed {seed}" if settings.seeds > 1 else name,
            progress=progress and rank() == 0,
        )
        outputs = outputs_of(network, split, "test")
        if name not in curves:  # the first seed's, which is the one shown
            sizes, count = list(network.machine.partition.sizes), parameters_read(network.machine)
            metrics[name], curves[name] = dict(sizes=sizes, parameters=count, seeds=[]), history
            predicted = split.preprocessing.predictions(outputs) if predicted is None else predicted
        best = min(range(len(history)), key=lambda epoch: history[epoch]["val_loss"])
        measured = measure(split.preprocessing, data.target.iloc[test], outputs)
        metrics[name]["seeds"].append(dict(seed=seed, epochs=len(history), best_epoch=best + 1, **measured))
    metrics["naive"] = naive(split.preprocessing, data.target, split.rows)
    metrics["verdict"] = verdict(metrics)
    machine = networks["machine", settings.seed].machine.requires_grad_(False)
    if keep and rank() == 0:
        machine.save(folder)
        write_json(folder / PREPROCESSING, split.preprocessing.to_json())
        truth = data.target.iloc[test].to_numpy()
        times = None if data.time is None else data.time.iloc[test].to_numpy()
        shown = split.preprocessing.classes, truth, cast(np.ndarray, predicted), times
        write_report(folder, machine, metrics, asdict(settings), curves, *shown)
        write_json(folder / METRICS, metrics)  # the last one: with it the run is finished
    return Trained(machine, metrics, split.preprocessing, folder if keep else None)


def announce(data: Data, settings: Settings, machine: StructuredMachine) -> None:
    kind = "images" if data.image else "columns" if len(data.inputs.columns) > 1 else "column"
    count = "×".join(map(str, data.image[1:])) if data.image else len(data.inputs.columns)
    what = f"{settings.data}: {settings.task} of {str(data.target.name)!r}, {len(data.target):,} rows, {count} {kind}"
    print(f"{what}\n{machine.kind} machine {' → '.join(map(str, machine.partition.sizes))}")
    for note in data.notes:
        print(note)


def outputs_of(network: Model, split: Split, part: str) -> np.ndarray:
    """What a network gives for the rows of a part: of a series, from what was before each."""
    rows = split.rows[part]
    if split.preprocessing.task == "forecast":
        return _outputs(network, split.inputs[None])[0, rows - 1].numpy()
    return _outputs(network, split.inputs[rows]).numpy()


@torch.no_grad()
def _outputs(network: Model, inputs: Tensor) -> Tensor:
    return network(inputs)
