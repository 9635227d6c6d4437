"""What a linear model learns of the same rows: the least that a network has to beat."""

from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression

from .split import Split


class Linear(NamedTuple):
    """Its outputs as a network's, for the rows of a part."""

    name: str
    weights: int
    outputs: dict[str, np.ndarray]


def linear(split: Split, lags: int) -> Linear:
    """Least squares, of a series on all inputs up to so many steps back; for classes, logistic regression."""
    x, goals, rows = split.inputs.double().flatten(1).numpy(), split.goals.numpy(), split.rows
    if split.preprocessing.classes is not None:
        model = LogisticRegression(max_iter=5000).fit(x[rows["train"]], goals[rows["train"]])
        places = model.classes_.astype(int)
        outputs = {}
        for part, chosen in rows.items():
            outputs[part] = np.full((len(chosen), len(split.preprocessing.classes)), -np.inf)
            outputs[part][:, places] = model.predict_log_proba(x[chosen])
        return Linear("logistic regression", model.coef_.size, outputs)
    name = "least squares"
    if split.preprocessing.task == "forecast":
        name = f"autoregression over {lags + 1} steps"
        past = [np.concatenate([np.zeros((lag + 1, x.shape[1])), x])[: len(x)] for lag in range(lags + 1)]
        x, rows = np.concatenate(past, 1), rows | {"train": rows["train"][lags + 1 :]}
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    solution = np.linalg.lstsq(x[rows["train"]], goals[rows["train"]], rcond=None)[0]
    return Linear(name, x.shape[1] - 1, {part: x[chosen] @ solution for part, chosen in rows.items()})
