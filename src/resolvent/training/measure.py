"""How good predictions are, beside the classical network's and a guess that learns nothing."""

from collections.abc import Mapping
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import log_softmax
from scipy.stats import t as student
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_absolute_error, r2_score, root_mean_squared_error

from .preprocessing import Preprocessing


def measure(preprocessing: Preprocessing, truth: pd.Series, outputs: np.ndarray) -> dict[str, float]:
    predicted = preprocessing.predictions(outputs)
    if preprocessing.classes is None:
        return _errors(truth.to_numpy(float), predicted)
    places, labels = preprocessing.goals(truth), range(len(preprocessing.classes))
    guessed = outputs.argmax(1)
    return dict(
        accuracy=float(accuracy_score(places, guessed)),
        f1=float(f1_score(places, guessed, average="macro", labels=list(labels))),
        log_loss=float(log_loss(places, np.exp(log_softmax(outputs.astype(float), 1)), labels=list(labels))),
    )


def naive(preprocessing: Preprocessing, target: pd.Series, parts: dict[str, np.ndarray]) -> dict[str, Any]:
    """The most frequent class, the mean, or the value before: what a machine has to beat."""
    truth, train = target.iloc[parts["test"]], target.iloc[parts["train"]]
    if preprocessing.task == "classification":
        return dict(guess="the most frequent class", accuracy=float((truth == train.mode()[0]).mean()))
    if preprocessing.task == "regression":
        return dict(guess="the mean", **_errors(truth.to_numpy(float), np.full(len(truth), train.mean())))
    before = target.iloc[parts["test"] - 1].to_numpy(float)
    return dict(guess="the value before", **_errors(truth.to_numpy(float), before))


def _errors(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    return dict(
        rmse=float(root_mean_squared_error(truth, predicted)),
        mae=float(mean_absolute_error(truth, predicted)),
        r2=float(r2_score(truth, predicted)),
    )


def headline(metrics: Mapping[str, Any]) -> tuple[str, int]:
    """The measure that decides, and 1 if more of it is better, else -1."""
    return ("accuracy", 1) if metrics["task"] == "classification" else ("rmse", -1)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def shown(metrics: Mapping[str, Any], value: float) -> str:
    return f"{value:.1%}" if headline(metrics)[0] == "accuracy" else number(value)


def verdict(metrics: Mapping[str, Any]) -> str:
    """Which network was better, by how much, whether that says anything, and whether neither beats a naive guess."""
    key, sign = headline(metrics)
    means = [mean(run[key] for run in metrics[name]["seeds"]) for name in ("machine", "sequential")]
    guess, guessed = metrics["naive"]["guess"], metrics["naive"][key]
    if max(sign * value for value in means) > sign * guessed:
        return _comparison(metrics)
    return f"{_comparison(metrics)} Neither beats {guess}: {key} {shown(metrics, guessed)}."


def _comparison(metrics: Mapping[str, Any]) -> str:
    key, sign = headline(metrics)
    machine, sequential = ([run[key] for run in metrics[name]["seeds"]] for name in ("machine", "sequential"))
    gain = [sign * (a - b) for a, b in zip(machine, sequential, strict=True)]
    better = "The machine" if mean(gain) > 0 else "The sequential network"
    numbers = f"{key} {shown(metrics, mean(machine))} (machine), {shown(metrics, mean(sequential))} (sequential)"
    rows, seeds = metrics["rows"]["test"], len(gain)

    def amount(value: float) -> str:
        return f"{value * 100:.1f}" if key == "accuracy" else number(value)

    by, unit = amount(abs(mean(gain))), " points" if key == "accuracy" else ""
    if metrics["machine"]["sizes"] == metrics["sequential"]["sizes"]:
        return f"Both are the same sequential network, and differ by their initialisation: {numbers}."
    if not mean(gain):
        return f"Both networks are equal: {numbers}."
    if seeds == 1:
        many = f" ({round(abs(gain[0]) * rows)} of {rows} test rows)" if key == "accuracy" else ""
        return f"{better} was better by {by}{unit}{many}: {numbers}. One seed says little; --seeds 5 gives the spread."
    half = float(student.ppf(0.975, seeds - 1)) * stdev(gain) / seeds**0.5
    doubt = "" if abs(mean(gain)) > half else ", so it may be chance"
    return f"{better} was better by {by} ± {amount(half)}{unit} (95 % interval over {seeds} seeds){doubt}: {numbers}."
