"""Cost grows as the arithmetic grows: time of forward and backward pass against channels, blocks and time steps.

Run: python benchmarks/scaling.py [--device cuda]
"""

import argparse
import csv
import platform
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from rich.progress import track

import resolvent as rv
from resolvent.studies.benchmark import passes, timed

SWEEPS = {
    "channels, in 8 blocks": [
        (n, lambda n=n, **o: rv.DenseMachine((n // 8,) * 8, **o), (256, n)) for n in (64, 128, 256, 512, 1024, 2048)
    ],
    "blocks, of 1,024 channels": [
        (b, lambda b=b, **o: rv.DenseMachine((1024 // b,) * b, **o), (256, 1024)) for b in (2, 8, 32, 128, 512, 1024)
    ],
    "time steps, 5 blocks of 32, 2 lags": [
        (t, lambda **o: rv.RecurrentMachine((32,) * 5, lags=2, **o), (32, t, 160)) for t in (8, 32, 128, 512, 1024)
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    device, cuda = arguments.device, arguments.device == "cuda"
    name = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()}-core CPU"
    rows = []
    for against, size, build, shape in track([(a, *row) for a, sweep in SWEEPS.items() for row in sweep], "measuring"):
        machine = build(bias=False, device=device)
        (columns,) = passes(machine, torch.randn(shape, device=device))
        read = int(machine.operator.mask(machine.connections.expand(machine.partition)).sum())
        samples = shape[0] * (shape[1] if len(shape) == 3 else 1)
        row = {"against": against, "size": size, "multiply-adds of one pass": read * samples}
        for function in columns.values():
            function()
        times = timed(list(columns.values()), cuda, 0.2)
        row |= {f"{column} (µs)": round(median, 1) for column, (_, median, _) in zip(columns, times, strict=True)}
        where = {"device": name, "python": platform.python_version(), "torch": torch.__version__}
        rows.append(row | where)
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / f"scaling-{device}.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    draw(arguments.out)


def draw(folder: Path) -> None:
    """What was measured, on every device there is a CSV for."""
    plt.rcParams["svg.hashsalt"] = "resolvent"
    figure, axes = plt.subplots(1, len(SWEEPS), figsize=(13, 4), layout="constrained")
    for color, path in enumerate(sorted(folder.glob("scaling-*.csv"))):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for axis, against in zip(axes, SWEEPS, strict=True):
            mine = [row for row in rows if row["against"] == against]
            sizes = [int(row["size"]) for row in mine]
            work = [float(row["multiply-adds of one pass"]) for row in mine]
            for column, style in (("forward", "-o"), ("forward + full backward", "--s")):
                times = [float(row[f"{column} (µs)"]) for row in mine]
                axis.plot(sizes, times, style, color=f"C{color}", label=f"{column}, {mine[0]['device']}", markersize=4)
            scale = times[-1] / work[-1]
            axis.plot(sizes, [w * scale for w in work], ":", color=f"C{color}", label="as the arithmetic grows")
            axis.set(xscale="log", yscale="log", xlabel=against, ylabel="µs")
            axis.legend(fontsize=6)
    figure.savefig(folder / "scaling.svg", metadata={"Date": None})
    print(f"written to {folder / 'scaling.svg'}")


if __name__ == "__main__":
    main()
