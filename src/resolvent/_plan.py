"""The order of the sweep: which rectangle of W is read when, and when a block is activated."""

from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from ._operators import Operator
from ._partition import Connections, Partition


class Product(NamedTuple):
    """y[to] += W[to, source] z[source]."""

    to: slice
    source: slice


class Activate(NamedTuple):
    """z[channels] += σ(y[channels])."""

    block: int
    channels: slice


class Plan:
    """An operator and the steps of one sweep over its blocks. The products cover the read part of W exactly once."""

    def __init__(self, operator: Operator, steps: tuple[Product | Activate, ...], dual: "Plan | None" = None):
        self.operator = operator
        self.steps = steps
        self.transposed = dual is not None
        self.dual = Plan(operator, _reverse(steps), dual=self) if dual is None else dual
        """The sweep of W*."""


def _reverse(steps: tuple[Product | Activate, ...]) -> tuple[Product | Activate, ...]:
    """The same steps backwards, each rectangle transposed."""
    return tuple(
        Product(to=step.source, source=step.to) if isinstance(step, Product) else step for step in reversed(steps)
    )


@lru_cache(maxsize=256)
def make_plan(operator: Operator, partition: Partition, connections: Connections) -> Plan:
    """Halve the blocks; solve the first half, add its effect on the second, solve the second."""
    blocks = partition.blocks

    def sweep(first: int, last: int) -> list[Product | Activate]:
        if last - first == 1:
            return [Activate(first, blocks[first])]
        middle = (first + last) // 2
        return sweep(first, middle) + list(effect(range(middle, last), range(first, middle))) + sweep(middle, last)

    def effect(to: range, source: range):
        """Rectangles that cover the connected pairs: equal neighbouring rows, cut into runs of connected columns."""
        for row, group in groupby(to, key=lambda i: tuple(connections[i][j] for j in source)):
            rows = list(group)
            for connected, run in groupby(source, key=lambda j: row[j - source.start]):
                columns = list(run)
                if connected:
                    yield Product(
                        to=slice(blocks[rows[0]].start, blocks[rows[-1]].stop),
                        source=slice(blocks[columns[0]].start, blocks[columns[-1]].stop),
                    )

    return Plan(operator, tuple(sweep(0, len(partition))))
