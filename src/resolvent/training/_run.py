"""`train`: data in, a fitted machine, its measure beside the classical network's, and a folder that tells all, out."""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist
from sklearn.model_selection import train_test_split
from torch import Tensor

from .. import export
from .._load import load
from .._machine import StructuredMachine
from ._data import Data, read
from ._fit import Rows, fit
from ._measure import measure, naive, verdict
from ._network import Network, Prediction, build, parameters_read, sequential_like
from ._preprocessing import Preprocessing
from ._preprocessing import fit as fit_preprocessing
from ._report import write_report

SETTINGS, METRICS, PREPROCESSING = "settings.json", "metrics.json", "preprocessing.json"
WINDOW, MOST_WINDOWS = 64, 2000  # steps of a stretch of a series to train on, and how many of them in an epoch


@dataclass(frozen=True)
class Settings:
    """All that a run's numbers depend on, besides the data itself."""

    data: str
    target: str | None
    task: str
    machine: str
    sizes: tuple[int, ...]
    activation: str
    connections: str
    lags: int | None
    epochs: int
    lr: float
    batch_size: int
    seed: int
    seeds: int
    device: str
    digest: str  # of the data


class Trained(NamedTuple):
    """The fitted machine and its metrics; the rest is what a prediction needs."""

    machine: StructuredMachine
    metrics: dict[str, Any]
    preprocessing: Preprocessing
    folder: Path | None

    def onnx(self, path: str | os.PathLike, *, time_steps: int | None = None) -> None:
        """Write an ONNX file from preprocessed inputs `x` to the `prediction`: probabilities, or the target's own units."""
        given = self.preprocessing
        module = Prediction(self.machine, given.classes is not None, given.mean, given.scale)
        export.write(module, self.machine, path, "prediction", time_steps=time_steps)

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Predictions for rows with the columns of the data, in any order.

        Of a series, each row's prediction is made from the rows before it, and one row more is what comes next.
        """
        x = torch.tensor(self.preprocessing.inputs(frame), dtype=torch.float32)
        if self.preprocessing.task == "forecast":
            values = self.preprocessing.predictions(_outputs(Network(self.machine), x[None])[0].numpy())
            return pd.DataFrame({"row": range(2, len(frame) + 2), "prediction": values})
        outputs = torch.cat([_outputs(Network(self.machine), part) for part in x.split(4096)])
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

    `data` is "digits", "diabetes", "sunspots", a CSV or Parquet file, or a data frame with a `target` column. `sizes` are
    the blocks between inputs and outputs. What is None is chosen by the data. `out` keeps the run, with a report;
    `resume` goes on with a run that was stopped.
    """
    given: dict[str, Any] = dict(target=target, task=task, machine=machine, activation=activation, lags=lags, lr=lr)
    given |= dict(connections=connections, epochs=epochs, batch_size=batch_size, seed=seed, seeds=seeds, device=device)
    given |= dict(sizes=None if sizes is None else tuple(sizes))
    folder = None if out is None else Path(out)
    with processes():
        if resume:
            data, given = _resumed(folder, data, given)
        learned = read("digits" if data is None else data, given["target"], given["task"])
        name = os.fspath(data) if isinstance(data, str | os.PathLike) else "digits" if data is None else "a data frame"
        settings = _settings(given, learned, name)
        if resume and settings.digest != _settings_of(cast(Path, folder)).digest:
            raise ValueError(f"{name} has changed since the run in {folder} began")
        plan = _prepare(learned, settings)
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="resolvent-") as temporary:
                return _run(learned, settings, plan, same_for_all(Path(temporary)), progress, keep=False)
        if not resume:
            _require_free(folder)
        return _run(learned, settings, plan, folder, progress, keep=True)


def open_run(folder: str | os.PathLike) -> Trained:
    """A finished run: its machine, metrics and preprocessing."""
    folder = Path(folder)
    if not (folder / METRICS).is_file():
        unfinished = (folder / SETTINGS).is_file()
        raise FileNotFoundError(
            f"the run in {folder} is not finished: go on with --resume" if unfinished else f"{folder} is not a run"
        )
    machine, metrics = load(folder), _read_json(folder / METRICS)
    if not isinstance(machine, StructuredMachine):
        raise ValueError(f"{folder} has a sum of machines, a run has one machine")
    try:
        preprocessing = Preprocessing.from_json(_read_json(folder / PREPROCESSING))
    except ValueError as error:
        raise ValueError(f"{folder / PREPROCESSING}: {error}") from None
    return Trained(machine.requires_grad_(False), metrics, preprocessing, folder)


def is_unfinished(folder: Path) -> bool:
    return (folder / SETTINGS).is_file() and not (folder / METRICS).is_file()


class _Plan(NamedTuple):
    """The rows of each part, what makes numbers of them, and these numbers."""

    parts: dict[str, np.ndarray]
    preprocessing: Preprocessing
    inputs: Tensor
    goals: Tensor


def _settings(given: dict[str, Any], data: Data, name: str) -> Settings:
    """What was given, and defaults for what was not."""
    kind = given["machine"] or ("conv" if data.image else "recurrent" if data.task == "forecast" else "dense")
    kinds = {"forecast": ("recurrent", "conv")}.get(data.task, ("conv", "dense") if data.image else ("dense",))
    if kind not in ("dense", "conv", "recurrent"):
        raise ValueError(f"machine={kind!r} is unknown: use dense, conv or recurrent")
    if kind not in kinds:
        what = "a series" if data.task == "forecast" else "images" if data.image else "rows of a table"
        raise ValueError(f"a {kind} machine cannot learn {data.task} from {what}: use {' or '.join(kinds)}")
    series = data.task == "forecast"
    if given["lags"] is not None and not series:
        raise ValueError(f"lags={given['lags']} is for series, this is {data.task}")
    if given["device"] not in (None, "auto", "cpu", "cuda"):
        raise ValueError(f"device={given['device']!r} is unknown: use auto, cpu or cuda")
    if given["device"] == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda' was asked for, PyTorch finds no GPU")
    best = "cuda" if torch.cuda.is_available() else "cpu"
    defaults: dict[str, Any] = dict(
        sizes=(16, 16, 16) if kind == "conv" else (16, 16) if kind == "recurrent" else (32, 32),
        activation="tanh" if series else "relu",
        connections="all",
        epochs=200 if series else 40 if kind == "conv" else 60,
        lr=3e-3,
        batch_size=32,
        seed=0,
        seeds=1,
    )
    values = {key: value for key, value in given.items() if value is not None}
    lags = given["lags"] if given["lags"] is not None else 3 if series else None
    chosen = dict(task=data.task, machine=kind, lags=lags, digest=data.digest(), data=name, target=given["target"])
    settings = Settings(
        **(defaults | values | chosen | dict(device=best if given["device"] in (None, "auto") else given["device"]))
    )
    for key, least in (("epochs", 1), ("batch_size", 1), ("seeds", 1), ("seed", 0), ("lags", 0)):
        value = getattr(settings, key)
        if value is not None and value < least:
            raise ValueError(f"{key}={value} must be at least {least}")
    if not 0 < settings.lr < float("inf"):
        raise ValueError(f"lr={settings.lr} must be positive")
    return settings


def _prepare(data: Data, settings: Settings) -> _Plan:
    rows = np.arange(len(data.target))
    if data.task == "forecast":
        if data.time is not None and not (data.time.is_monotonic_increasing and data.time.is_unique):
            raise ValueError(f"the rows are not in order of {data.time.name!r}: sort them first")
        ends = [round(len(rows) * share) for share in (0.65, 0.8)]
        train, validation, test = np.split(rows, ends)
        if len(train) <= cast(int, settings.lags) + 1:
            raise ValueError(
                f"{data.name} has {len(rows)} steps, {len(train)} of them to train on: lags={settings.lags} is too long"
            )
    else:
        classes = data.target if data.task == "classification" else None
        rest, test = train_test_split(rows, test_size=0.2, random_state=settings.seed, stratify=classes)
        classes = None if classes is None else classes.iloc[rest]
        train, validation = train_test_split(rest, test_size=0.2, random_state=settings.seed, stratify=classes)
    parts = dict(train=train, validation=validation, test=test)
    preprocessing = fit_preprocessing(data, train)
    inputs = torch.tensor(preprocessing.inputs(data.inputs), dtype=torch.float32)
    goals = torch.tensor(preprocessing.goals(data.target))
    return _Plan(parts, preprocessing, inputs, goals if not goals.is_floating_point() else goals.float())


def _rows(plan: _Plan, part: str) -> Rows:
    """A part to learn from: its rows; of a series, stretches with the next value for target, or all that leads to it."""
    rows = plan.parts[part]
    if plan.preprocessing.task != "forecast":
        return Rows(plan.inputs[rows], plan.goals[rows])
    following = torch.cat([plan.goals[1:], plan.goals.new_full((1, 1), torch.nan)])
    if part == "train":
        length = min(WINDOW, len(rows) - 1)
        starts = range(0, len(rows) - length, max(1, len(rows) // MOST_WINDOWS))
        return Rows(*(torch.stack([x[i : i + length] for i in starts]) for x in (plan.inputs, following)))
    counted = torch.zeros(len(plan.inputs), 1, dtype=torch.bool)
    counted[rows - 1] = True
    last = rows[-1] + 1
    return Rows(plan.inputs[None, :last], following.where(counted, torch.nan)[None, :last])


def _network(data: Data, settings: Settings, plan: _Plan, seed: int, sequential: bool) -> Network:
    outputs = 1 if plan.preprocessing.classes is None else len(plan.preprocessing.classes)
    options: dict[str, Any] = dict(lags=settings.lags) if settings.machine == "recurrent" else {}
    if settings.machine == "conv":
        series = dict(kernel_size=cast(int, settings.lags or 0) + 1, padding="causal")
        options = dict(kernel_size=(3, 3)) if data.image else series
    channels = data.image[0] if data.image and settings.machine == "conv" else plan.inputs[0].numel()
    channels = plan.inputs.shape[-1] if data.task == "forecast" else channels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build(
            settings.machine, channels, settings.sizes, outputs, settings.activation, settings.connections, **options
        )
        return sequential_like(network.machine) if sequential else network


def _run(data: Data, settings: Settings, plan: _Plan, folder: Path, progress: bool, keep: bool) -> Trained:
    names = ("machine", "sequential")
    networks = {
        (name, seed): _network(data, settings, plan, seed, name == "sequential")
        for seed in range(settings.seed, settings.seed + settings.seeds)
        for name in names
    }  # before anything is written, so that bad settings leave nothing behind
    if progress and _rank() == 0:
        _announce(data, settings, networks["machine", settings.seed].machine)
    folder.mkdir(parents=True, exist_ok=True)
    if _rank() == 0:
        _write_json(folder / SETTINGS, asdict(settings))
    train, validation = _rows(plan, "train"), _rows(plan, "validation")
    metrics: dict[str, Any] = dict(data=settings.data, task=data.task, target=str(data.target.name))
    metrics |= dict(rows={part: len(rows) for part, rows in plan.parts.items()}, notes=list(data.notes))
    histories, outputs = {}, {}
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
            progress=progress and _rank() == 0,
        )
        histories[name, seed], outputs[name, seed] = history, _test_outputs(network, plan)
    for name in names:
        first = networks[name, settings.seed].machine
        metrics[name] = dict(sizes=list(first.partition.sizes), parameters=parameters_read(first), seeds=[])
        for seed in range(settings.seed, settings.seed + settings.seeds):
            losses = [epoch["val_loss"] for epoch in histories[name, seed]]
            scores = measure(plan.preprocessing, data.target.iloc[plan.parts["test"]], outputs[name, seed])
            best = int(np.argmin(losses))
            metrics[name]["seeds"].append(dict(seed=seed, epochs=len(losses), best_epoch=best + 1, **scores))
    metrics["naive"] = naive(plan.preprocessing, data.target, plan.parts)
    metrics["verdict"] = verdict(metrics)
    machine = networks["machine", settings.seed].machine.requires_grad_(False)
    if keep and _rank() == 0:
        machine.save(folder)
        _write_json(folder / PREPROCESSING, plan.preprocessing.to_json())
        curves = {name: histories[name, settings.seed] for name in names}
        test = plan.parts["test"]
        truth = data.target.iloc[test].to_numpy()
        predicted = plan.preprocessing.predictions(outputs["machine", settings.seed])
        times = None if data.time is None else data.time.iloc[test].to_numpy()
        write_report(
            folder, machine, metrics, asdict(settings), curves, plan.preprocessing.classes, truth, predicted, times
        )
        _write_json(folder / METRICS, metrics)  # the last one: with it the run is finished
    return Trained(machine, metrics, plan.preprocessing, folder if keep else None)


def _announce(data: Data, settings: Settings, machine: StructuredMachine) -> None:
    kind = "images" if data.image else "columns"
    count = "×".join(map(str, data.image[1:])) if data.image else len(data.inputs.columns)
    what = f"{settings.data}: {settings.task} of {str(data.target.name)!r}, {len(data.target):,} rows, {count} {kind}"
    print(f"{what}\n{machine.kind} machine {' → '.join(map(str, machine.partition.sizes))}, depth {machine.depth}")
    for note in data.notes:
        print(note)


def _test_outputs(network: Network, plan: _Plan) -> np.ndarray:
    rows = plan.parts["test"]
    if plan.preprocessing.task == "forecast":
        return _outputs(network, plan.inputs[None])[0, rows - 1].numpy()
    return _outputs(network, plan.inputs[rows]).numpy()


@torch.no_grad()
def _outputs(network: Network, inputs: Tensor) -> Tensor:
    return network(inputs)


def _resumed(folder: Path | None, data: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The data and settings of the run in the folder, which nothing given may contradict."""
    if folder is None:
        raise ValueError("resume needs out, the folder of the run to go on with")
    if (folder / METRICS).is_file():
        raise ValueError(f"the run in {folder} is finished")
    before = asdict(_settings_of(folder))
    if data is not None and not isinstance(data, pd.DataFrame) and os.fspath(data) != before["data"]:
        raise ValueError(f"the run in {folder} has data={before['data']!r}, not {os.fspath(data)!r}")
    for key, value in given.items():
        if value is not None and value != before[key] and not (key == "device" and value == "auto"):
            raise ValueError(f"the run in {folder} has {key}={before[key]!r}, not {value!r}")
    return before["data"] if data is None else data, {key: before[key] for key in given}


def _settings_of(folder: Path) -> Settings:
    if not (folder / SETTINGS).is_file():
        raise FileNotFoundError(f"{folder} has no run to go on with")
    values = _read_json(folder / SETTINGS)
    if not isinstance(values, dict) or set(values) != {field.name for field in fields(Settings)}:
        raise ValueError(f"{folder / SETTINGS} does not have the settings of a run")
    return Settings(**(values | dict(sizes=tuple(values["sizes"]))))


def _require_free(folder: Path) -> None:
    if _rank() == 0 and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        hint = "go on with it by --resume" if is_unfinished(folder) else "name another one"
        raise ValueError(f"out={folder} exists and is not empty: {hint}")


def _rank() -> int:
    return int(os.environ.get("RANK", 0))


def same_for_all(folder: Path) -> Path:
    """The first process's folder, in all of them."""
    if not dist.is_initialized():
        return folder
    shared = [folder]
    dist.broadcast_object_list(shared)
    return shared[0]


@contextmanager
def processes() -> Iterator[None]:
    """Where torchrun started several processes, they form a group, which Lightning then uses."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        yield
        return
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _write_json(path: Path, content: Any) -> None:
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    aside.replace(path)
