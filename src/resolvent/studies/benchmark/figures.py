"""The paper's two figures from the benchmark's CSV: runtimes and backward over forward, beside the authors' numbers."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from .cases import AUTHORS

DTYPES = {"cpu": "float64", "cuda": "float32"}  # as the authors measured
MISSING = (float("nan"), float("nan"))  # of a program that could not run a case
Rows = Sequence[Mapping[str, str]]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def times(rows: Rows, device: str, program: str) -> dict[str, tuple[float, float]]:
    """(forward, backward to the inputs) in microseconds, for the paper's cases in the authors' precision."""
    return {
        row["case"]: (float(row["forward (µs)"]), float(row["backward to inputs (µs)"]))
        for row in rows
        if row["program"] == program and row["dtype"] == DTYPES[device] and (row["case"], device) in AUTHORS
        if row.get("backward to inputs (µs)")
    }


def figures(measured: Mapping[str, Rows]) -> tuple[Figure, Figure]:
    """Runtimes on a log scale, and backward over forward, from the rows of each device."""
    devices = [device for device in DTYPES if times(measured.get(device, []), device, "passes")]
    width = 6 * max(1, len(devices))
    runtimes, ratios = (
        Figure(figsize=(width, 4), layout="constrained"),
        Figure(figsize=(width, 3.2), layout="constrained"),
    )
    if not devices:
        return runtimes, ratios
    above, below = (figure.subplots(1, len(devices), squeeze=False)[0] for figure in (runtimes, ratios))
    for device, axes, ratio_axes in zip(devices, above, below, strict=True):
        rows = measured[device]
        ours, loop = times(rows, device, "passes"), times(rows, device, "loop")
        authors = {case: AUTHORS[case, device] for case in ours}
        place = rows[0]["device"]
        for i, (name, series) in enumerate(
            (("machine, passes", ours), ("loop, PyTorch", loop), ("the authors' program", authors))
        ):
            for half, (label, hatch) in enumerate((("forward", ""), ("backward", "///"))):
                positions = [j + (2 * i + half - 2.5) * 0.13 for j in range(len(ours))]
                values = [series.get(case, MISSING)[half] for case in ours]
                axes.bar(positions, values, 0.12, color=f"C{i}", hatch=hatch, alpha=0.9, label=f"{name}, {label}")
            positions = [j + (i - 1) * 0.25 for j in range(len(ours))]
            values = [series.get(case, MISSING)[1] / series.get(case, MISSING)[0] for case in ours]
            ratio_axes.bar(positions, values, 0.23, color=f"C{i}", label=name)
        axes.set(yscale="log", ylabel="µs", title=f"{place}, {DTYPES[device]} (authors: their {device.upper()})")
        ratio_axes.set(ylabel="backward / forward", title=f"{place}, {DTYPES[device]}")
        ratio_axes.axhline(1, color="black", linewidth=0.8)
        for a in (axes, ratio_axes):
            a.set_xticks(range(len(ours)), [case.replace(" ", "\n") for case in ours], fontsize=8)
            a.margins(y=0.35)  # room for the legend
            a.legend(fontsize=7, loc="upper left", ncols=2)
    return runtimes, ratios
