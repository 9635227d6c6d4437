"""What to learn from: an embedded set, a file or a data frame, checked, with its task and what its columns are."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false

import difflib
import hashlib
import os
import re
import warnings
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
LARGEST = 1e30  # numbers beyond this leave float32 in no time
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
    load, target = (datasets.load_digits, "digit") if name == "digits" else (datasets.load_diabetes, "progression")
    return cast(Any, load(as_frame=True)).frame.rename(columns={"target": target}), target


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
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)  # rows with more fields than the header
            return pd.read_csv(path, index_col=False)
    except (ValueError, OSError, pd.errors.ParserWarning) as error:  # pandas' and Arrow's own errors are among these
        raise ValueError(f"{path} cannot be read as {path.suffix[1:].lower()}: {error}".splitlines()[0]) from None


def available_memory() -> int:
    """Bytes that can be used without swapping, as far as the system says."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) * 2**10
    except (OSError, StopIteration):
        return 2**63


def _goal(frame: pd.DataFrame, target: str, name: str) -> pd.Series:
    """The target, if every row has one and all are alike."""
    if len(frame) < FEWEST_ROWS:
        raise ValueError(f"{name} has {len(frame)} rows, training needs at least {FEWEST_ROWS}")
    goal = frame[target]
    if goal.isna().any():
        first = int(goal.isna().to_numpy().argmax())
        raise ValueError(
            f"target {target!r} is missing in {goal.isna().sum()} of {len(frame)} rows, first in row {first + 1}: "
            "leave them out (an empty field, NA, null and the like read as missing)"
        )
    if isinstance(goal.dtype, pd.CategoricalDtype):
        goal = goal.astype(goal.cat.categories.dtype)
    if len({type(value) for value in goal.tolist()}) > 1 or not isinstance(goal.tolist()[0], str | int | float):
        kinds = sorted({type(value).__name__ for value in goal.tolist()})
        raise ValueError(f"target {target!r} must be numbers, texts or booleans, all alike: it has {', '.join(kinds)}")
    return goal  # pyright: ignore  # a column


def _check_classes(goal: pd.Series, target: str) -> None:
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


def check(frame: pd.DataFrame, target: str, task: str | None, name: str) -> Data:
    """The data, after what would spoil training has been refused by name."""
    frame, target = frame.rename(columns=str).reset_index(drop=True), str(target)
    if not frame.columns.is_unique:
        raise ValueError(f"{name} has two columns {frame.columns[frame.columns.duplicated()][0]!r}")
    if target not in frame:
        close = difflib.get_close_matches(target, list(frame), 1)
        raise ValueError(
            f"target {target!r} is no column" + (f": {close[0]!r} is" if close else f": {_columns(frame)}")
        )
    goal = _goal(frame, target, name)
    frame, times = _without_times(frame, target)
    task = task or _task(goal, times)
    if goal.nunique() == 1:
        raise ValueError(f"target {target!r} is {goal.tolist()[0]!r} in every row: there is nothing to learn")
    if task == "classification":
        _check_classes(goal, target)
    elif not types.is_numeric_dtype(goal) or types.is_bool_dtype(goal):
        raise ValueError(f"target {target!r} must be numbers for {task}, the first row has {goal.tolist()[0]!r}")
    for column in frame.select_dtypes("number"):
        infinite = ~(np.abs(frame[column].to_numpy(float, na_value=0)) < LARGEST)
        if infinite.any():
            what = f"{infinite.sum()} infinite or huge values, at least {LARGEST:.0e}"
            raise ValueError(f"column {column!r} has {what}, first in row {infinite.argmax() + 1}")
    for column in frame.select_dtypes(["bool", "boolean"]).columns.drop(target, errors="ignore"):
        frame[column] = frame[column].to_numpy(float, na_value=np.nan)
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
    if frame.empty:
        raise ValueError(f"there is no column to learn {target!r} from" + "".join(f"; {note}" for note in notes))
    pixels = _pixels(frame) if task == "classification" else None
    if pixels is None:
        return Data(name, frame, goal, task, None, time, tuple(notes))
    side = isqrt(len(pixels))
    return Data(name, frame[pixels], goal, task, (1, side, side), time, tuple(notes))


def _without_times(frame: pd.DataFrame, target: str) -> tuple[pd.DataFrame, list[pd.Series]]:
    """The frame without the columns that say when a row was, and these; a series has one that grows from row to row."""
    times: list[pd.Series] = []
    for column in frame.columns.drop(target):
        values = frame[column]
        if not types.is_numeric_dtype(values) and not types.is_datetime64_any_dtype(values):
            sample = values.dropna().astype(str)
            if not len(sample) or not sample.str.match(r"\d{4}-\d\d").all():
                continue
            values = pd.to_datetime(values, errors="coerce", format="ISO8601", utc=True)
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
    if isinstance(column.dropna().iloc[0], list | dict | np.ndarray):
        return "holds lists or other nested values"
    if not types.is_numeric_dtype(column) and column.nunique() > MOST_CATEGORIES:
        return f"has {column.nunique():,} different texts, more than {MOST_CATEGORIES},"
    return None


def _pixels(frame: pd.DataFrame) -> list[str] | None:
    """The columns in order, if they are the pixels of a square: pixel0, pixel1 … or pixel_0_0, pixel_0_1 …."""
    names: dict[str, Any] = {name: re.fullmatch(r"pix(?:el)?\D*(\d+)(?:\D(\d+))?", str(name).lower()) for name in frame}
    square = isqrt(len(names)) ** 2 == len(names) >= 16
    if not square or not all(names.values()) or len(frame.select_dtypes("number").columns) < len(names):
        return None
    return sorted(names, key=lambda name: [int(number) for number in names[name].groups() if number])


def _columns(frame: pd.DataFrame) -> str:
    names = [str(column) for column in frame.columns]
    return "the columns are " + ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
