"""What to learn from: an embedded set, a file or a data frame, checked, with its task and what its columns are."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

import difflib
import hashlib
import os
import re
from dataclasses import dataclass, replace
from math import isqrt
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from pandas.api import types
from sklearn import datasets

TASKS = ("classification", "regression", "forecast")
FEWEST_ROWS = 30  # to train, validate and test on
MOST_CLASSES = 20  # whole numbers with more values than this are quantities
MOST_CATEGORIES = 100  # texts with more values than this are names or prose
TIMES = ("year", "month", "week", "day", "date", "datetime", "time", "timestamp")
EMBEDDED = {
    "digits": "1,797 handwritten digits of 8×8 pixels (UCI, from scikit-learn)",
    "diabetes": "442 patients, 10 measurements, disease progression (Efron et al. 2004, from scikit-learn)",
    "sunspots": "sunspots in each year from 1700 to 2008 (NOAA's National Geophysical Data Center, public domain)",
}


@dataclass(frozen=True, eq=False)
class Data:
    """Rows to learn `target` from. In a series, rows are in order of time and the target is among the inputs."""

    name: str
    inputs: pd.DataFrame
    target: pd.Series
    task: str
    image: tuple[int, int, int] | None = None  # channels, height and width, where a row is an image
    time: pd.Series | None = None
    notes: tuple[str, ...] = ()

    def digest(self) -> str:
        """Changes when the data changes."""
        hashed = hashlib.sha256()
        for column in (*(self.inputs[name] for name in self.inputs), self.target):
            hashed.update(str(column.name).encode())
            hashed.update(np.asarray(pd.util.hash_pandas_object(column, index=False)).tobytes())
        return hashed.hexdigest()


def read(source: str | os.PathLike | pd.DataFrame, target: str | None = None, task: str | None = None) -> Data:
    """The data of that name, in that file (CSV or Parquet) or frame; task and kinds of columns inferred."""
    if task is not None and task not in TASKS:
        raise ValueError(f"task={task!r} is unknown: use one of {', '.join(TASKS)}")
    if isinstance(source, str) and source in EMBEDDED:
        if target is not None:
            raise ValueError(f"target={target!r} is for your own data; {source} has its target")
        frame, target = _embedded(source)
        data = check(frame, target, task, source)
        return replace(data, notes=(EMBEDDED[source], *data.notes))
    frame = source if isinstance(source, pd.DataFrame) else table(source)
    name = "data" if isinstance(source, pd.DataFrame) else Path(source).stem
    if target is None:
        raise ValueError(f"the target column must be named: {_columns(frame)}")
    return check(frame, target, task, name)


def _embedded(name: str) -> tuple[pd.DataFrame, str]:
    if name == "sunspots":
        return pd.read_csv(Path(__file__).with_name("sunspots.csv")), "sunspots"
    loaded = cast(
        Any, datasets.load_digits(as_frame=True) if name == "digits" else datasets.load_diabetes(as_frame=True)
    )
    return loaded.frame.rename(columns={"target": "digit" if name == "digits" else "progression"}), (
        "digit" if name == "digits" else "progression"
    )


def table(source: str | os.PathLike) -> pd.DataFrame:
    """A CSV or Parquet file as a frame."""
    path = Path(source)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; embedded are {', '.join(EMBEDDED)}")
    if not path.is_file() or path.suffix.lower() not in (".csv", ".parquet"):
        raise ValueError(f"{path} must be a .csv or .parquet file")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty")
    needed, free = 6 * path.stat().st_size, available_memory()
    if needed > free:
        raise ValueError(
            f"{path} has {path.stat().st_size / 2**30:.1f} GiB, reading it needs about {needed / 2**30:.1f} GiB of "
            f"memory and {free / 2**30:.1f} GiB are free: train on a sample of its rows"
        )
    try:
        return pd.read_csv(path) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except (ValueError, OSError) as error:  # of which pandas' and Arrow's own errors are kinds
        raise ValueError(f"{path} cannot be read as {path.suffix[1:].lower()}: {error}".splitlines()[0]) from None


def available_memory() -> int:
    """Bytes that can be used without swapping, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 2**10
    except (OSError, StopIteration):
        return 2**63


def check(frame: pd.DataFrame, target: str, task: str | None, name: str) -> Data:
    """The data, after what would spoil training has been refused by name."""
    frame = frame.rename(columns=str).reset_index(drop=True)
    if target not in frame:
        close = difflib.get_close_matches(target, list(frame), 1)
        raise ValueError(
            f"target {target!r} is no column" + (f": {close[0]!r} is" if close else f": {_columns(frame)}")
        )
    if len(frame) < FEWEST_ROWS:
        raise ValueError(f"{name} has {len(frame)} rows, training needs at least {FEWEST_ROWS}")
    goal = frame[target]
    if goal.isna().any():
        first = int(goal.isna().to_numpy().argmax())
        raise ValueError(
            f"target {target!r} is missing in {goal.isna().sum()} of {len(frame)} rows, first in row {first + 1}: "
            "leave them out"
        )
    frame, times = _without_times(frame, target)
    task = task or _task(goal, times)
    if goal.nunique() == 1:
        raise ValueError(f"target {target!r} is {goal.tolist()[0]!r} in every row: there is nothing to learn")
    if task == "classification":
        counts = goal.value_counts()
        if len(counts) > MOST_CATEGORIES:
            raise ValueError(
                f"target {target!r} has {len(counts):,} classes, more than {MOST_CATEGORIES}"
                + (": for a quantity, the task is regression" if types.is_numeric_dtype(goal) else "")
            )
        if counts.iloc[-1] < 4:
            raise ValueError(
                f"class {counts.index.tolist()[-1]!r} of target {target!r} has {counts.iloc[-1]} rows, "
                "each needs at least 4"
            )
    elif not types.is_numeric_dtype(goal) or types.is_bool_dtype(goal):
        raise ValueError(f"target {target!r} must be numbers for {task}, the first row has {goal.tolist()[0]!r}")
    for column in frame.select_dtypes("number"):
        infinite = ~np.isfinite(frame[column].to_numpy(float, na_value=0))
        if infinite.any():
            raise ValueError(
                f"column {column!r} has {infinite.sum()} infinite values, first in row {infinite.argmax() + 1}"
            )
    time = None
    if task == "forecast":
        time = times[0] if times else None
    else:
        frame = frame.drop(columns=target)
    notes = [f"column {t.name!r} holds times and is left out" for t in times if t is not time]
    for column in list(frame):
        reason = _useless(frame[column])
        if reason and column != target:
            frame = frame.drop(columns=column)
            notes.append(f"column {column!r} {reason} and is left out")
    if frame.empty or not len(frame.columns):
        raise ValueError(f"there is no column to learn {target!r} from" + "".join(f"; {note}" for note in notes))
    image = _image(frame) if task == "classification" else None
    return Data(name, frame, goal, task, image, time, tuple(notes))


def _without_times(frame: pd.DataFrame, target: str) -> tuple[pd.DataFrame, list[pd.Series]]:
    """The frame without the columns that say when a row was, and these; a series has one that grows from row to row."""
    times: list[pd.Series] = []
    for column in frame.columns.drop(target):
        values = frame[column]
        if not types.is_numeric_dtype(values) and not types.is_datetime64_any_dtype(values):
            sample = values.dropna().astype(str)
            if not len(sample) or not sample.str.match(r"\d{4}-\d\d").all():
                continue
            values = pd.to_datetime(values, errors="coerce", format="ISO8601")
        elif types.is_numeric_dtype(values) and not (column.lower() in TIMES and values.is_monotonic_increasing):
            continue
        if values.notna().all() and (types.is_numeric_dtype(values) or types.is_datetime64_any_dtype(values)):
            times.append(values)
    times.sort(key=lambda values: not (values.is_monotonic_increasing and values.is_unique))
    return frame.drop(columns=[t.name for t in times]), times


def _task(goal: pd.Series, times: list[pd.Series]) -> str:
    if not types.is_numeric_dtype(goal) or types.is_bool_dtype(goal):
        return "classification"
    if times and times[0].is_monotonic_increasing and times[0].is_unique:
        return "forecast"
    whole = bool((goal == goal.round()).all())
    return "classification" if whole and goal.nunique() <= min(MOST_CLASSES, len(goal) // 10) else "regression"


def _useless(column: pd.Series) -> str | None:
    if column.isna().all():
        return "is empty"
    if not types.is_numeric_dtype(column) and column.nunique() > MOST_CATEGORIES:
        return f"has {column.nunique():,} different texts, more than {MOST_CATEGORIES},"
    return None


def _image(frame: pd.DataFrame) -> tuple[int, int, int] | None:
    """Squares of numbered columns (pixel0, pixel1 …, or pixel_0_0 …) are images."""
    side = isqrt(len(frame.columns))
    prefixes = {re.sub(r"[\d_.-]+$", "", column) for column in frame}
    numbered = len(prefixes) == 1 and all(re.search(r"\d$", column) for column in frame)
    if (
        side * side != len(frame.columns)
        or side < 4
        or not numbered
        or len(frame.select_dtypes("number").columns) < side**2
    ):
        return None
    return 1, side, side


def _columns(frame: pd.DataFrame) -> str:
    names = [str(column) for column in frame.columns]
    return "the columns are " + ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
