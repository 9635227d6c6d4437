"""The order of the sweep: which rectangle of W is read when, and when a block is activated."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

from ..structure.operator import Product, Rectangle, Region
from ..structure.partition import Connections, Partition


class Activate(NamedTuple):
    """z[region] += σ(y[region])."""

    region: Region
    block: int


Step = Product | Activate

CHUNK = 8  # of more than twice so many lags, most are products over so many steps at once


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
        chunk: int,
        rectangles: tuple[Rectangle, ...],
        dual: "Plan | None" = None,
    ):
        self.steps, self.partition, self.connections, self.history = steps, partition, connections, history
        self.chunk = chunk
        """How many steps are solved between products with all that came before them."""
        self.rectangles = rectangles
        """The read part of W, without overlap."""
        self.transposed = dual is not None
        self.handle: int | None = None  # what compiled code knows it by
        backwards = tuple(map(_transpose, reversed(steps)))
        self.dual = dual or Plan(backwards, partition, connections, history, chunk, rectangles, dual=self)

    def chunk_of(self, step: int) -> range:
        """The steps of the chunk that a time step belongs to; the last one may be shorter."""
        start = self.history + (step - self.history) // self.chunk * self.chunk
        return range(start, start + self.chunk)


def _transpose(step: Step) -> Step:
    return Product(to=step.source, source=step.to, lags=step.lags) if isinstance(step, Product) else step


@lru_cache(maxsize=256)
def _shared(partition: Partition, connections: Connections) -> tuple[Partition, Connections]:
    """The first of equal ones, for all plans to have the same."""
    return partition, connections


@lru_cache(maxsize=256)
def make_plan(partition: Partition, connections: Connections, time_steps: int, history: int) -> Plan:
    """Time block after time block: what earlier time blocks bring, then a sweep over the channel blocks.

    That sweep halves the blocks: it solves the first half, adds its effect on the second, solves the second. Of many
    lags, what comes from before a chunk of time blocks is one product for the whole chunk. The first `history` steps of
    a point are given, not computed.
    """
    partition, connections = _shared(partition, connections)
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
    chunk = time_block * max(1, CHUNK // time_block if len(lags) > 2 * CHUNK else 1)
    stop = history + time_steps
    steps: list[Step] = []
    for first in range(history, stop, chunk):
        together = range(first, min(first + chunk, stop))
        steps += [product for rectangle in recurrence for product in _products(rectangle, together, range(first))]
        for start in range(first, together.stop, time_block):
            times = range(start, min(start + time_block, together.stop))
            inside = range(first, start)
            steps += [product for rectangle in recurrence for product in _products(rectangle, times, inside)]
            for item in depth:
                if isinstance(item, int):
                    steps.append(Activate(Region(times, channels[item]), item))
                else:
                    steps += _products(item, times, range(times.stop))
    rectangles = (*recurrence, *(item for item in depth if not isinstance(item, int)))
    return Plan(tuple(steps), partition, connections, history, chunk, rectangles)


def _products(rectangle: Rectangle, times: range, past: range) -> list[Product]:
    """The rectangle's effect on the given times, if it reaches back to any step of the past at all."""
    lags, to, source = rectangle
    lags = range(max(lags.start, times.start - past.stop + 1), min(lags.stop, times.stop - past.start))
    past = range(max(past.start, times.start - lags.stop + 1), min(past.stop, times.stop - lags.start))
    return [Product(to=Region(times, to), source=Region(past, source), lags=lags)] if lags and past else []


def _runs(items: range, keys: Sequence[Any]) -> Iterator[tuple[Any, range]]:
    """Neighbouring items with equal keys, and that key."""
    start = items.start
    for value, group in groupby(keys):
        stop = start + sum(1 for _ in group)
        yield value, range(start, stop)
        start = stop


def _join(channels: list[range], blocks: range) -> range:
    return range(channels[blocks[0]].start, channels[blocks[-1]].stop)
