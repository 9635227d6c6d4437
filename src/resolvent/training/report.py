"""The pictures of a run, and one page with all of them that needs no network."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .. import plot
from ..machines.recurrent import RecurrentMachine
from ..machines.structured import StructuredMachine
from ..pages.write import write_page
from ..structure.connections import connect
from .measure import headline, number, shown
from .network import arithmetic, shortcuts

Curves = Mapping[str, Sequence[Mapping[str, float]]]


def write_report(
    folder: Path,
    machine: StructuredMachine,
    metrics: Mapping[str, Any],
    settings: Mapping[str, Any],
    curves: Curves,
    classes: Sequence[Any] | None,
    truth: np.ndarray,
    predicted: np.ndarray,
    times: np.ndarray | None,
) -> None:
    """All pictures as SVG, and `report.html`."""
    figures = {
        "learning-curve": (
            learning_curve(curves),
            "Loss after each epoch, from the first seed; the weights kept are those of the lowest validation loss.",
        ),
        **pictures(machine),
    }
    if classes is not None:
        figures["confusion"] = confusion(classes, truth, predicted), "Test rows by their class and the predicted one."
    elif metrics["task"] == "forecast":
        caption = "One step ahead over the test part, each step from the true values before it."
        figures["forecast"] = forecast(truth, predicted, times), caption
    else:
        figures["predictions"] = scatter(truth, predicted), "Test rows: on the line, prediction and truth agree."
    write_page(
        folder / "report.html",
        figures,
        metrics=metrics,
        settings=said(settings),
        machine=summary(machine),
        scores=scores(metrics),
    )


def pictures(machine: StructuredMachine) -> dict[str, tuple[Figure, str]]:
    """What a machine looks like: its weights and its network."""
    network = machine.as_sum(time_steps=2) if isinstance(machine, RecurrentMachine) else machine.as_sum()
    steps = " for two time steps" if isinstance(machine, RecurrentMachine) else ""
    return {
        "weights": (plot.weights(machine), "The weights from block (column) to block (row), with the grid of blocks."),
        "network": (plot.network(network), f"The network as a sum of machines of depth 1{steps}."),
    }


def summary(machine: StructuredMachine) -> dict[str, Any]:
    unit = {"dense": "row", "conv": "position", "recurrent": "step"}[machine.kind]
    return {
        "kind": machine.kind,
        "sizes": " → ".join(map(str, machine.partition.sizes)),
        "activation": str(machine.activation),
        "connections": _connections(machine),
        **machine.arguments,
        **({} if isinstance(machine, RecurrentMachine) else {"depth": machine.depth}),
        f"arithmetic for a {unit}": f"{arithmetic(machine):,} multiplications and additions",
        "strongest shortcuts, by norm": ", ".join(f"{name} ({norm:.2f})" for name, norm in shortcuts(machine)[:5])
        or "none",
    }


def said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was chosen, under the names of the command's options."""
    return {key.replace("_", "-"): v for key, v in settings.items() if v is not None and key != "digest"}


def _connections(machine: StructuredMachine) -> str:
    """By name, or how many of all blocks that may feed each other do."""
    given, (lags, time_block) = machine.connections, (machine.connections.lags, machine.connections.time_block)
    named = {name: connect(name, machine.partition, lags, time_block) for name in ("all", "sequential")}  # pyright: ignore
    edges = [sum(sum(map(sum, matrix)) for matrix in c.matrices) for c in (given, named["all"])]
    return next((name for name, c in named.items() if c == given), f"{edges[0]} of {edges[1]} edges")


def scores(metrics: Mapping[str, Any]) -> list[list[str]]:
    """A table: the networks and the naive guess, with every measure, as mean and spread over the seeds."""
    measures = [name for name in metrics["machine"]["seeds"][0] if name not in ("seed", "epochs", "best_epoch")]
    table = [["", "parameters", *(name.replace("_", " ") for name in measures)]]
    for name in ("machine", "sequential"):
        runs = metrics[name]["seeds"]
        cells = [_spread(metrics, measure, [run[measure] for run in runs]) for measure in measures]
        table.append([name, f"{metrics[name]['parameters']:,}", *cells])
    naive = metrics["naive"]
    guess = [_spread(metrics, name, [naive[name]]) if name in naive else "" for name in measures]
    return [*table, [naive["guess"], "", *guess]]


def _spread(metrics: Mapping[str, Any], name: str, values: Sequence[float]) -> str:
    percent = name == headline(metrics)[0] == "accuracy"
    middle = shown(metrics, float(np.mean(values))) if percent else number(float(np.mean(values)))
    if len(values) == 1:
        return middle
    spread = float(np.std(values, ddof=1))
    return f"{middle} ± {f'{spread:.1%}' if percent else number(float(f'{spread:.2g}'))}"


def learning_curve(curves: Curves) -> Figure:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for color, (name, history) in zip(("tab:blue", "tab:orange"), curves.items(), strict=True):
        for key, style in (("train_loss", "--"), ("val_loss", "-")):
            values = [epoch[key] for epoch in history]
            label = f"{name}, {'training' if key == 'train_loss' else 'validation'}"
            axes.semilogy(range(1, len(values) + 1), values, style, color=color, label=label, linewidth=1.4)
    axes.set(xlabel="epoch", ylabel="loss")
    axes.legend(frameon=False, ncols=2, fontsize=8)
    return figure


def confusion(classes: Sequence[Any], truth: np.ndarray, predicted: np.ndarray) -> Figure:
    places = {label: i for i, label in enumerate(classes)}
    counts = np.zeros((len(classes), len(classes)), dtype=int)
    for actual, guess in zip(truth, predicted, strict=True):
        counts[places[actual], places[guess]] += 1
    side = min(14, 2 + 0.45 * len(classes))
    figure = Figure(figsize=(side + 0.6, side), layout="constrained")
    axes = figure.subplots()
    axes.imshow(counts, cmap="Blues")
    labels = [str(label) for label in classes]
    turned = 90 if max(map(len, labels)) > 4 else 0
    axes.set_xticks(range(len(labels)), labels, rotation=turned, parse_math=False)
    axes.set_yticks(range(len(labels)), labels, parse_math=False)
    axes.set(xlabel="predicted", ylabel="true")
    if len(classes) <= 30:
        for (i, j), count in np.ndenumerate(counts):
            if count:
                color = "white" if count > counts.max() / 2 else "black"
                axes.text(j, i, str(count), ha="center", va="center", fontsize=8, color=color)
    return figure


def forecast(truth: np.ndarray, predicted: np.ndarray, times: np.ndarray | None) -> Figure:
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    axes = figure.subplots()
    x = np.arange(len(truth)) if times is None else times
    axes.plot(x, truth, color="0.2", linewidth=1.2, label="truth")
    axes.plot(x, predicted, color="tab:blue", linewidth=1.4, label="prediction, one step ahead")
    axes.set(xlabel="time")
    axes.legend(frameon=False)
    return figure


def scatter(truth: np.ndarray, predicted: np.ndarray) -> Figure:
    figure = Figure(figsize=(4.6, 4.4), layout="constrained")
    axes = figure.subplots()
    ends = [min(truth.min(), predicted.min()), max(truth.max(), predicted.max())]
    axes.plot(ends, ends, color="0.6", linewidth=1)
    axes.plot(truth, predicted, ".", color="tab:blue", alpha=0.6)
    axes.set(xlabel="truth", ylabel="prediction")
    return figure
