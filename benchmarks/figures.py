"""The paper's two figures from the benchmark's CSV, beside the authors' numbers: runtimes, and backward over forward.

Run: python benchmarks/figures.py
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
from cases import AUTHORS

RESULTS = Path(__file__).parent / "results"
DTYPES = {"cpu": "float64", "cuda": "float32"}  # as the authors measured


def rows(device: str) -> list[dict[str, str]]:
    for name in (f"{device}.csv", f"{device}-quick.csv"):
        if (RESULTS / name).exists():
            with (RESULTS / name).open(newline="") as file:
                return [row for row in csv.DictReader(file) if row["dtype"] == DTYPES[device]]
    return []


def times(device: str, program: str) -> dict[str, tuple[float, float]]:
    """(forward, backward to the inputs) in microseconds, for the paper's cases."""
    return {
        row["case"]: (float(row["forward (µs)"]), float(row["backward to inputs (µs)"]))
        for row in rows(device)
        if row["program"] == program and row.get("backward to inputs (µs)") and (row["case"], device) in AUTHORS
    }


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "resolvent"
    devices = [device for device in DTYPES if times(device, "passes")]
    runtimes, above = plt.subplots(1, len(devices), figsize=(6 * len(devices), 4), squeeze=False, layout="constrained")
    ratios, below = plt.subplots(1, len(devices), figsize=(6 * len(devices), 3.2), squeeze=False, layout="constrained")
    for device, axes, ratio_axes in zip(devices, above[0], below[0], strict=True):
        ours, loop = times(device, "passes"), times(device, "loop")
        authors = {case: AUTHORS[case, device] for case in ours}
        place = rows(device)[0]["device"]
        for i, (name, series) in enumerate(
            (("machine", ours), ("loop, PyTorch", loop), ("the authors' program", authors))
        ):
            for half, (label, hatch) in enumerate((("forward", ""), ("backward", "///"))):
                positions = [j + (2 * i + half - 2.5) * 0.13 for j in range(len(ours))]
                values = [series[case][half] for case in ours]
                axes.bar(positions, values, 0.12, color=f"C{i}", hatch=hatch, alpha=0.9, label=f"{name}, {label}")
            positions = [j + (i - 1) * 0.25 for j in range(len(ours))]
            values = [series[case][1] / series[case][0] for case in ours]
            ratio_axes.bar(positions, values, 0.23, color=f"C{i}", label=name)
        axes.set(yscale="log", ylabel="µs", title=f"{place}, {DTYPES[device]} (authors: their {device.upper()})")
        ratio_axes.set(ylabel="backward / forward", title=f"{place}, {DTYPES[device]}")
        ratio_axes.axhline(1, color="black", linewidth=0.8)
        for a in (axes, ratio_axes):
            a.set_xticks(range(len(ours)), [case.replace(" ", "\n") for case in ours], fontsize=8)
            a.margins(y=0.35)  # room for the legend
            a.legend(fontsize=7, loc="upper left", ncols=2)
    for figure, name in ((runtimes, "runtimes"), (ratios, "ratios")):
        figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None})
        print(f"written to {RESULTS / name}.svg")


if __name__ == "__main__":
    main()
