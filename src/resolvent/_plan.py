"""The order of the sweep: which rectangle of W is read when, and when a block is activated."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from ._operators import Product, Rectangle, Region
from ._partition import Connections, Partition


class Activate(NamedTuple):
    """z[region] += σ(y[region])."""

    region: Region
    block: int


Step = Product | Activate


class Plan:
    """The steps of one sweep. Its dual reads W* in the same steps backwards, each product transposed.

    At every time step that is computed, the products read each connected entry of W exactly once. All is plain data, so
    that a compiler can take a plan as a constant.
    """

    def __init__(
        self,
        steps: tuple[Step, ...],
        partition: Partition,
        connections: Connections,
        history: int,
        dual: "Plan | None" = None,
    ):
        self.steps, self.partition, self.connections, self.history = steps, partition, connections, history
        self.transposed = dual is not None
        self.handle: int | None = None  # what compiled code knows it by
        backwards = tuple(map(_transpose, reversed(steps)))
        self.dual = dual or Plan(backwards, partition, connections, history, dual=self)
        products = (step for step in (self.dual if dual else self).steps if isinstance(step, Product))
        self.rectangles = tuple(dict.fromkeys(Rectangle(p.lags, p.to.channels, p.source.channels) for p in products))
        """The read part of W, without overlap."""


def _transpose(step: Step) -> Step:
    return Product(to=step.source, source=step.to, lags=step.lags) if isinstance(step, Product) else step


@lru_cache(maxsize=256)
def make_plan(partition: Partition, connections: Connections, time_steps: int, history: int) -> Plan:
    """Time block after time block: what earlier time blocks bring, then a sweep over the channel blocks.

    That sweep halves the blocks: it solves the first half, adds its effect on the second, solves the second. The first
    `history` steps of a point are given, not computed.
    """
    matrices, time_block = connections.matrices, connections.time_block
    lags = range(len(matrices))
    channels = [range(block.start, block.stop) for block in partition.blocks]
    everything = range(len(partition))

    def cover(lags: range, to: range, source: range) -> Iterator[Rectangle]:
        """Disjoint rectangles over the connected pairs: lags that agree, equal neighbouring rows, runs of columns."""
        columns_of = slice(source.start, source.stop)
        for rows, same_lags in _runs(lags, [[matrices[lag][i][columns_of] for i in to] for lag in lags]):
            for row, same_rows in _runs(to, rows):
                for connected, columns in _runs(source, row):
                    if connected:
                        yield Rectangle(same_lags, _join(channels, same_rows), _join(channels, columns))

    def sweep(blocks: range) -> list[Rectangle | int]:
        if len(blocks) == 1:
            return [blocks[0]]
        first, second = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
        return sweep(first) + list(cover(lags[:time_block], second, first)) + sweep(second)

    recurrence = list(cover(lags[time_block:], everything, everything))
    depth = sweep(everything)
    steps: list[Step] = []
    for start in range(history, history + time_steps, time_block):
        times = range(start, min(start + time_block, history + time_steps))
        for rectangle in recurrence:
            # With more lags than steps, a step at a time: its window of the past is then one long vector.
            pieces = [range(t, t + 1) for t in times] if len(rectangle.lags) > len(times) else [times]
            steps += [product for piece in pieces for product in _products(rectangle, piece)]
        for item in depth:
            if isinstance(item, int):
                steps.append(Activate(Region(times, channels[item]), item))
            else:
                steps += _products(item, times)
    return Plan(tuple(steps), partition, connections, history)


def _products(rectangle: Rectangle, times: range) -> list[Product]:
    """The rectangle's effect on the given times, if it reaches back to any step at all."""
    lags, to, source = rectangle
    past = range(max(0, times.start - lags.stop + 1), times.stop - lags.start)
    return [Product(to=Region(times, to), source=Region(past, source), lags=lags)] if past else []


def _runs(items: range, keys: Sequence[Any]) -> Iterator[tuple[Any, range]]:
    """Neighbouring items with equal keys, and that key."""
    start = items.start
    for value, group in groupby(keys):
        stop = start + sum(1 for _ in group)
        yield value, range(start, stop)
        start = stop


def _join(channels: list[range], blocks: range) -> range:
    return range(channels[blocks[0]].start, channels[blocks[-1]].stop)
