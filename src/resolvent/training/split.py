"""The rows to train, validate and test on, as numbers."""

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor

from .data import Data
from .fit import Rows
from .preprocessing import Preprocessing, fit
from .settings import Settings

WINDOW, MOST_WINDOWS = 64, 2000  # steps of a stretch of a series to train on, and how many of them in an epoch


class Split(NamedTuple):
    """The rows of each part, what makes numbers of them, and these numbers."""

    rows: dict[str, np.ndarray]
    preprocessing: Preprocessing
    inputs: Tensor
    goals: Tensor


def divide(data: Data, settings: Settings) -> Split:
    """65, 15 and 20 %: at random, with the same share of each class, or of a series one after the other."""
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
    preprocessing = fit(data, train)
    inputs = torch.tensor(preprocessing.inputs(data.inputs), dtype=torch.float32)
    goals = torch.tensor(preprocessing.goals(data.target))
    divided: Any = dict(train=train, validation=validation, test=test)
    return Split(divided, preprocessing, inputs, goals if not goals.is_floating_point() else goals.float())


def narrowed(split: Split, used: Tensor) -> Split:
    """The split of the inputs that are True in `used` alone, of which rows need no other columns."""
    kept = split.preprocessing.of_features(used.tolist())
    inputs = split.inputs if split.preprocessing.task == "forecast" else split.inputs.flatten(1)
    return split._replace(preprocessing=kept, inputs=inputs[:, used])


def rows_of(split: Split, part: str, lags: int = 0) -> Rows:
    """A part to learn from: its rows; of a series, stretches with the next value for target, or all that leads to it.

    What is NaN in a target does not count.
    """
    rows = split.rows[part]
    if split.preprocessing.task != "forecast":
        return Rows(split.inputs[rows], split.goals[rows])
    following = torch.cat([split.goals[1:], split.goals.new_full((1, 1), torch.nan)])
    if part == "train":
        length = min(max(WINDOW, 2 * lags), len(rows) - 1)
        starts = range(0, len(rows) - length, max(1, len(rows) // MOST_WINDOWS))
        return Rows(*(torch.stack([x[i : i + length] for i in starts]) for x in (split.inputs, following)))
    counted = torch.zeros(len(split.inputs), 1, dtype=torch.bool)
    counted[rows - 1] = True
    last = rows[-1] + 1
    return Rows(split.inputs[None, :last], following.where(counted, torch.nan)[None, :last])
