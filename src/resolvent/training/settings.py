"""The settings of a run: what was asked for, what the data suggests, and the file that keeps them."""

import json
import os
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from ..files.folder import replace_text
from ..structure.partition import integer, integers
from .data import Data

SETTINGS, METRICS = "settings.json", "metrics.json"


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
    processes: int
    digest: str  # of the data
    by: str | None = None  # what a search takes away; None where nothing is searched


def choose(given: dict[str, Any], data: Data, name: str) -> Settings:
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
    values: dict[str, Any] = defaults | {key: value for key, value in given.items() if value is not None}
    values |= dict(task=data.task, machine=kind, digest=data.digest(), data=name, target=given["target"])
    values["lags"] = 3 if series and given["lags"] is None else given["lags"]
    values["device"] = best if given["device"] in (None, "auto") else given["device"]
    values["processes"] = int(os.environ.get("WORLD_SIZE", 1))
    for key, least in (("epochs", 1), ("batch_size", 1), ("seeds", 1), ("seed", 0), ("lags", 0)):
        if values[key] is not None:
            values[key] = integer(key, values[key], minimum=least)
    if values["seed"] + values["seeds"] > 2**32:
        raise ValueError(f"seed={values['seed']} must be below 2³²")
    if not isinstance(values["lr"], int | float) or not 0 < values["lr"] < float("inf"):
        raise ValueError(f"lr={values['lr']} must be positive")
    values["sizes"] = integers("sizes", values["sizes"])
    return Settings(**values)


def resumed(folder: Path | None, data: Any, given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The data and settings of the run in the folder, which nothing given may contradict."""
    if folder is None:
        raise ValueError("resume needs out, the folder of the run to go on with")
    if (folder / METRICS).is_file():
        raise ValueError(f"the run in {folder} is finished")
    before = asdict(settings_of(folder))
    if data is not None and not isinstance(data, pd.DataFrame) and os.fspath(data) != before["data"]:
        raise ValueError(f"the run in {folder} has data={before['data']!r}, not {os.fspath(data)!r}")
    for key, value in given.items():
        if value is not None and value != before[key] and not (key == "device" and value == "auto"):
            raise ValueError(f"the run in {folder} has {key}={before[key]!r}, not {value!r}")
    return before["data"] if data is None else data, {key: before[key] for key in given}


def check_resumed(folder: Path, settings: Settings) -> None:
    """That the run in the folder is the one that these settings would go on with."""
    before = settings_of(folder)
    if (settings.by is None) != (before.by is None):
        raise ValueError(f"the run in {folder} is a {'search' if before.by else 'training'}, go on with it as one")
    if settings.digest != before.digest:
        raise ValueError(f"{settings.data} has changed since the run in {folder} began")
    if settings.processes != before.processes:
        raise ValueError(f"the run in {folder} has {before.processes} processes, not {settings.processes}")


def settings_of(folder: Path) -> Settings:
    if not (folder / SETTINGS).is_file():
        raise FileNotFoundError(f"{folder} has no run to go on with: start it without --resume")
    values = read_json(folder / SETTINGS)
    if not isinstance(values, dict) or set(values) != {field.name for field in fields(Settings)}:
        raise ValueError(f"{folder / SETTINGS} does not have the settings of a run")
    if not isinstance(values["sizes"], list) or not isinstance(values["processes"], int):
        raise ValueError(f"{folder / SETTINGS} does not have the settings of a run")
    values["sizes"] = tuple(values["sizes"])
    return Settings(**values)


def write_settings(folder: Path, settings: Settings) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / SETTINGS, asdict(settings))


def why_taken(folder: Path) -> str | None:
    """What is wrong with the folder for a new run, if anything."""
    if folder.exists() and not folder.is_dir():
        return f"out={folder} is a file"
    if folder.exists() and any(folder.iterdir()):
        hint = "go on with it by --resume" if is_unfinished(folder) else "name another one"
        return f"out={folder} exists and is not empty: {hint}"
    return None


def forget(folder: Path) -> None:
    """Remove what an unfinished run wrote, and the folder if that was all."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / SETTINGS).unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


def is_unfinished(folder: Path) -> bool:
    return (folder / SETTINGS).is_file() and not (folder / METRICS).is_file()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise FileNotFoundError(f"{path} cannot be opened") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def write_json(path: Path, content: Any) -> None:
    replace_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
