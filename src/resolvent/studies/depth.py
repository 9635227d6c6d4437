"""Whether networks still train when they get deeper: a machine with all shortcuts beside classical networks.

All learn scikit-learn's digits by one recipe: Adam at a constant rate, a fixed number of epochs, batches of 64, no
regularisation, the test rows seen once, at the end. The classical networks are as wide as makes their parameters as
many as the machine's. Each is trained from He's initialisation, whose rule the machine also draws its weights by, and
from that of `nn.Linear`. `residual` has blocks x + W relu(x) as they are, `scaled` divides each branch by the root of
their number, `BatchNorm` normalises before each relu. Needs the packages of `resolvent[train]`.
"""

import csv
import io
import math
import os
import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

import resolvent as rv

from ..files.folder import replace_text

INPUTS, UNITS, CLASSES, BATCH = 64, 16, 10, 64


class Residual(nn.Module):
    """Blocks x + scale W relu(x), or with batch normalisation N in the usual order x + W relu(N(x))."""

    def __init__(self, blocks: int, width: int, scale: float = 1.0, normalised: bool = False):
        super().__init__()
        self.scale = scale
        self.first, self.last = nn.Linear(INPUTS, width), nn.Linear(width, CLASSES)
        self.branches = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) if normalised else nn.Identity() for _ in range(blocks + 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for branch, norm in zip(self.branches, self.norms, strict=False):  # the last norm is the output's
            x = x + self.scale * branch(norm(x).relu())
        return self.last(self.norms[-1](x).relu())


def sequential(blocks: int, width: int) -> nn.Module:
    """Each hidden layer reads only the one before it."""
    widths = (INPUTS, *[width] * blocks)
    hidden = [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


CLASSICAL: dict[str, Callable[[int, int], nn.Module]] = {
    "residual, BatchNorm": partial(Residual, normalised=True),
    "residual, scaled": lambda blocks, width: Residual(blocks, width, blocks**-0.5),
    "residual": Residual,
    "sequential": sequential,
    "one wide layer": lambda blocks, width: sequential(1, width),
}
MACHINE = "machine"
NETWORKS = ((MACHINE, "He"), *((name, drawn) for name in CLASSICAL for drawn in ("He", "PyTorch")))
"""Each network with what its first weights are drawn by."""


def sizes(blocks: int) -> tuple[int, ...]:
    """The dimensions of the machine's blocks."""
    return INPUTS, *[UNITS] * blocks, CLASSES


def machine_parameters(blocks: int) -> int:
    """The weights that a machine of so many hidden blocks reads, and its bias."""
    dimensions = sizes(blocks)
    return sum(size * (sum(dimensions[:i]) + 1) for i, size in enumerate(dimensions))


def parameters(network: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(x.numel() for x in network.parameters())


@cache
def matched_width(name: str, blocks: int) -> int:
    """The width at which a classical network has the number of parameters nearest to the machine's."""
    wanted = machine_parameters(blocks)

    def excess(width: int) -> int:
        with torch.device("meta"):
            return parameters(CLASSICAL[name](blocks, width)) - wanted

    wider = bisect_left(range(2, wanted), 0, key=excess) + 2
    return min(wider - 1, wider, key=lambda width: abs(excess(width)))


def build(name: str, blocks: int, drawn: str) -> nn.Module:
    """A network of NETWORKS with new weights."""
    if name == MACHINE:
        return rv.Network.dense(INPUTS, [UNITS] * blocks, CLASSES, activation="relu")
    network = CLASSICAL[name](blocks, matched_width(name, blocks))
    for layer in network.modules():
        if drawn == "He" and isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    return network


def digits(seed: int) -> Sequence[Tensor]:
    """Inputs to train on and to test on, and their classes: four fifths and one fifth, pixels between 0 and 1."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, classes = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16, classes, test_size=0.2, random_state=seed, stratify=classes)
    x, x_test, y, y_test = map(torch.as_tensor, parts)
    return x.float(), x_test.float(), y, y_test


def accuracy(network: nn.Module, data: Sequence[Tensor], epochs: int, lr: float) -> float:
    """The share of right answers on the test rows after training."""
    x, x_test, y, y_test = data
    optimizer = torch.optim.Adam(network.parameters(), lr)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(x[rows]), y[rows]).backward()
            optimizer.step()
    network.eval()
    with torch.no_grad():
        return (network(x_test).argmax(1) == y_test).double().mean().item()


def measured(blocks: Sequence[int], seeds: int, epochs: int, lr: float) -> Iterator[dict[str, Any]]:
    """One row for each network, number of blocks and seed, as soon as it is trained."""
    where = {"device": f"one thread of a {os.cpu_count()}-core CPU"}
    where |= {"python": platform.python_version(), "torch": torch.__version__}
    for n, (name, drawn), seed in product(blocks, NETWORKS, range(seeds)):
        data = digits(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = build(name, n, drawn)
            start = time.perf_counter()
            share = accuracy(network, data, epochs, lr)
            seconds = time.perf_counter() - start
        count = machine_parameters(n) if name == MACHINE else parameters(network)
        row = dict(network=name, initialisation=drawn, blocks=n, parameters=count, seed=seed)
        row |= dict(accuracy=round(share, 4), seconds=round(seconds, 2), epochs=epochs)
        yield row | {"learning rate": lr} | where


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """The mean accuracy in percent and its standard deviation over the seeds, by network and number of blocks."""
    shown = Table(title="test accuracy on digits in percent, by hidden blocks", title_justify="left")
    found: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        key = row["network"], row["initialisation"]
        found.setdefault(key, {}).setdefault(row["blocks"], []).append(100 * row["accuracy"])
    for column in ("network", "initialisation"):
        shown.add_column(column)
    for n in dict.fromkeys(row["blocks"] for row in rows):
        shown.add_column(str(n), justify="right")
    for key, by_blocks in found.items():
        spreads = (f" ± {stdev(each):.1f}" if len(each) > 1 else "" for each in by_blocks.values())
        shown.add_row(*key, *(f"{mean(each):.1f}{s}" for each, s in zip(by_blocks.values(), spreads, strict=True)))
    return shown


def run(out: Path, *, blocks: Sequence[int] = (8, 24, 48), seeds: int = 3, epochs: int = 40, lr: float = 1e-3) -> Path:
    """Train all networks, print the table, and write `depth.csv`, whose path is returned."""
    if not blocks or min(blocks) < 1 or len(set(blocks)) < len(blocks):
        raise ValueError(f"blocks={tuple(blocks)} must be different numbers of at least 1")
    for name, value in (("seeds", seeds), ("epochs", epochs)):
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1")
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"lr={lr} must be a positive number")
    if out.exists() and not out.is_dir():
        raise ValueError(f"out={out} is a file, a folder is needed")
    out.mkdir(parents=True, exist_ok=True)
    rows, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # two are hardly faster at these sizes, and many times slower beside another program
    try:
        with Progress() as progress:
            task = progress.add_task("training", total=len(blocks) * len(NETWORKS) * seeds)
            for row in measured(blocks, seeds, epochs, lr):
                rows.append(row)
                progress.update(task, advance=1, description=f"{row['blocks']} blocks, {row['network']}")
    finally:
        torch.set_num_threads(threads)
    Console().print(table(rows))
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path = out / "depth.csv"
    replace_text(path, text.getvalue())
    return path
