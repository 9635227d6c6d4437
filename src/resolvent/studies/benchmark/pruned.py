"""What pruning and packing save: machines of fewer edges or blocks beside the full one, and packed ones beside whole.

A step is zero_grad, forward, backward and the optimiser's step. Both machines of a row take turns. Before anything is
timed, the smaller machine's output is compared with that of the full one whose weight is zero where it is not read.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.progress import Progress
from torch import Tensor

from ... import space
from ...machines.convolutional import ConvMachine
from ...machines.dense import DenseMachine
from ...machines.recurrent import RecurrentMachine
from .measure import WrongAnswer, show, timed, versions, warn_if_busy, write


class Case(NamedTuple):
    """A full machine, a smaller one of the space, and an input; `kept` are the channels that the smaller one has."""

    name: str
    full: Callable[[], Any]
    smaller: Callable[[Any], Any]
    shape: tuple[int, ...]
    kept: Callable[[Any], Tensor] = lambda full: torch.ones(full.partition.total, dtype=torch.bool)


def _edges(share: float) -> Callable[[Any], Any]:
    """A share of the edges, drawn."""

    def pruned(full: Any) -> Any:
        edges = torch.tensor(full.connections.matrices)
        places = edges.nonzero()
        order = torch.randperm(len(places), generator=torch.Generator().manual_seed(0))
        keep = torch.zeros_like(edges)
        keep[tuple(places[order[: round(share * len(places))]].T)] = True
        return space.connected(full, keep)

    return pruned


def _blocks(full: Any) -> Tensor:
    """The channels of the first and the last block, and of two others."""
    return torch.cat([torch.full((size,), i in (0, 2, 4, 7)) for i, size in enumerate(full.partition.sizes)])


CASES = (
    Case("dense 8×64, batch 512, 43 % of the edges", lambda: DenseMachine((64,) * 8), _edges(0.43), (512, 64)),
    Case(
        "dense 8×64, batch 512, half of the blocks",
        lambda: DenseMachine((64,) * 8),
        lambda full: space.selected(full, _blocks(full)),
        (512, 64),
        _blocks,
    ),
    Case(
        "convolution 8×16, 28×28, batch 16, 42 % of the edges",
        lambda: ConvMachine((16,) * 8, "relu", kernel_size=(3, 3)),
        _edges(0.42),
        (16, 16, 28, 28),
    ),
    Case(
        "recurrent 4×32, 8 lags, 64 steps, batch 32, 12 % of the edges",
        lambda: RecurrentMachine((32,) * 4, lags=8),
        _edges(0.12),
        (32, 64, 32),
    ),
    *(
        Case(f"packed, dense 5×32, batch {batch}", lambda: DenseMachine((32,) * 5), space.packed, (batch, 32))
        for batch in (1, 32, 512)
    ),
    Case("packed, dense 8×64, batch 512", lambda: DenseMachine((64,) * 8), space.packed, (512, 64)),
    Case("packed, dense 40×16, batch 64", lambda: DenseMachine((16,) * 40), space.packed, (64, 16)),
    Case(
        "packed, convolution 8×16, 28×28, batch 8",
        lambda: ConvMachine((16,) * 8, "relu", kernel_size=(3, 3)),
        space.packed,
        (8, 16, 28, 28),
    ),
    Case(
        "packed, recurrent 4×32, 6 lags, 50 steps, batch 32",
        lambda: RecurrentMachine((32,) * 4, lags=6),
        space.packed,
        (32, 50, 32),
    ),
)


def check(case: Case, full: Any, smaller: Any, x: Tensor) -> None:
    """That the smaller machine is the full one in which what it lacks feeds nothing."""
    zeroed, kept = space.unpacked(full), case.kept(full)
    with torch.no_grad():
        W = zeroed.weight.movedim(zeroed.operator.weight_axes, (0, 1))
        W[:, ~kept] = 0
        if kept.all():
            zeroed.weight.mul_(smaller.operator.mask(smaller.connections.expand(smaller.partition)))
        channels = kept.nonzero().flatten()
        expected = zeroed(x).index_select(zeroed.operator.channel_axis, channels)
        error = (smaller(x) - expected).abs().max().item()
    if not error <= 1e-4:
        raise WrongAnswer(f"differs from the full machine by {error:.1e}")


def programs(machine: Any, x: Tensor) -> dict[str, Callable[[], Any]]:
    adam, sgd = torch.optim.Adam(machine.parameters(), 1e-6), torch.optim.SGD(machine.parameters(), 1e-6)

    def forward() -> None:
        with torch.no_grad():
            machine(x)

    def gradient() -> None:
        machine.zero_grad()
        machine(x).square().mean().backward()

    def step(optimizer: Any) -> None:
        gradient()
        optimizer.step()

    return {"forward": forward, "gradient": gradient, "SGD step": lambda: step(sgd), "Adam step": lambda: step(adam)}


def measure(case: Case, seconds: float) -> Iterator[dict[str, Any]]:
    torch.manual_seed(0)
    full, x = case.full(), torch.randn(case.shape)
    smaller = case.smaller(full)
    check(case, full, smaller, x)
    share = smaller.system.entries / full.system.entries
    both = programs(full, x), programs(smaller, x)
    for name in both[0]:
        times = timed([each[name] for each in both], False, seconds)
        (_, whole, _), (q1, middle, q3) = times
        row: dict[str, Any] = {
            "case": case.name,
            "dtype": "float32",
            "program": name,
            "weights": f"{share:.3f} of full",
        }
        row |= {"full (µs)": round(whole), "q1": round(q1), "smaller (µs)": round(middle), "q3": round(q3)}
        yield row | {"ratio": round(middle / whole, 3)}


def run_pruned(out: Path, *, quick: bool = False, only: str = "") -> Path:
    """Measure on the CPU, in float32, print a table, and write the CSV file whose path is returned."""
    cases = [case for case in CASES if only in case.name]
    if not cases:
        raise ValueError(f"no case of pruning has {only!r} in its name: {'; '.join(case.name for case in CASES)}")
    where = versions(f"{torch.get_num_threads()}-core CPU")
    rows: list[dict[str, Any]] = []
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"pruned-cpu{'-quick' if quick else ''}.csv"
    warn_if_busy()
    with Progress() as progress:
        task = progress.add_task("measuring", total=len(cases))
        for case in cases:
            progress.update(task, description=case.name)
            rows += [row | where for row in measure(case, 0.1 if quick else 1.0)]
            write(rows, path)
            progress.advance(task)
    columns = ("weights", "full (µs)", "smaller (µs)", "ratio")
    show(where["device"], rows, {column: column for column in columns})
    return path
