"""The order of the sweep: which rectangle of W is read when, and when a block is activated.

A plan does not depend on how many time steps there are: what waits for the recurrence stands in a loop over time, in
which times are relative and clipped when it runs. The plan of the dual is that plan backwards.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from ..structure.connections import Connections
from ..structure.operator import Product, Rectangle, Region
from ..structure.partition import Partition

EVERY, BEFORE, WITHIN = range(3)
"""What of the past a product reads: all, what came before this turn of its loop or, of that, since the loop began."""

CHUNK = 8
"""Of more than twice so many lags, what comes from before so many steps is one product for all of them.

Without it, 1,024 steps of 256 lags take 67 ms instead of 30 on an H200, and the dual 190 instead of 27.
"""


class Multiply(NamedTuple):
    """y += W z with the rectangle k, for all times of this turn, as far as the past reaches."""

    k: int
    reach: int


class Activate(NamedTuple):
    """z += σ(y) in a block, for all times of this turn."""

    block: int


class Loop(NamedTuple):
    """The body for `stride` time steps after the others; outside of loops, a step is for all times at once."""

    stride: int
    body: tuple["Step", ...]


Step: TypeAlias = Multiply | Activate | Loop


class Activated(NamedTuple):
    """z[region] += σ(y[region])."""

    region: Region
    block: int


def plan(partition: Partition, connections: Connections) -> tuple[tuple[Rectangle, ...], tuple[Step, ...]]:
    """The read part of W as rectangles without overlap, and the steps of a sweep, which read each of them once.

    Time block after time block: what earlier time blocks bring, then a sweep over the channel blocks. That sweep halves
    the blocks: it solves the first half, adds its effect on the second, solves the second.
    """
    matrices, time_block = connections.matrices, connections.time_block
    lags = range(len(matrices))
    channels = [range(block.start, block.stop) for block in partition.blocks]
    everything = range(len(partition))
    rectangles: list[Rectangle] = []

    def cover(lags: range, to: range, source: range, reach: int) -> Iterator[Multiply]:
        """Disjoint rectangles over the connected pairs: lags that agree, equal neighbouring rows, runs of columns."""
        columns_of = slice(source.start, source.stop)
        for rows, same_lags in _runs(lags, [[matrices[lag][i][columns_of] for i in to] for lag in lags]):
            for row, same_rows in _runs(to, rows):
                for connected, columns in _runs(source, row):
                    if connected:
                        yield Multiply(len(rectangles), reach)
                        part = _join(channels, same_rows), _join(channels, columns)
                        rectangles.append(Rectangle(len(rectangles), same_lags, *part))

    def sweep(blocks: range) -> list[Step]:
        if len(blocks) == 1:
            return [Activate(blocks[0])]
        first, second = blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
        return sweep(first) + list(cover(lags[:time_block], second, first, EVERY)) + sweep(second)

    recurrence = list(cover(lags[time_block:], everything, everything, EVERY))
    depth = sweep(everything)
    if len(lags) == 1:
        return tuple(rectangles), tuple(depth)
    if len(lags) <= 2 * CHUNK or 2 * time_block > CHUNK:
        return tuple(rectangles), (Loop(time_block, (*recurrence, *depth)),)
    far, near = ([Multiply(k, reach) for k, _ in recurrence] for reach in (BEFORE, WITHIN))
    loop = Loop(time_block, (*near, *depth))
    return tuple(rectangles), (Loop(CHUNK // time_block * time_block, (*far, loop)),)


def backwards(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The plan of the dual, which pushes back what the plan reads."""
    return tuple(Loop(s.stride, backwards(s.body)) if isinstance(s, Loop) else s for s in reversed(steps))


def unrolled(
    rectangles: Sequence[Rectangle], partition: Partition, steps: tuple[Step, ...], transposed: bool, times: range
) -> Iterator[Product | Activated]:
    """The steps one after another for these times, each with its own; before them, others are given."""
    blocks = [range(block.start, block.stop) for block in partition.blocks]

    def run(steps: tuple[Step, ...], now: range, around: range) -> Iterator[Product | Activated]:
        for step in steps:
            if isinstance(step, Loop):
                turns = range(now.start, now.stop, step.stride)
                for start in reversed(turns) if transposed else turns:
                    yield from run(step.body, range(start, min(start + step.stride, now.stop)), now)
            elif isinstance(step, Activate):
                yield Activated(Region(now, blocks[step.block]), step.block)
            else:
                since = around.start if step.reach == WITHIN else 0
                past = range(since, now.stop if step.reach == EVERY else now.start)
                yield from _product(rectangles[step.k], now, past, transposed)

    return run(steps, times, range(times.stop))


def _product(rectangle: Rectangle, times: range, past: range, transposed: bool) -> Iterator[Product]:
    """The rectangle's effect of the past on these times or, transposed, of these times on the past, if there is any."""
    k, lags, to, source, _ = rectangle
    lags = range(max(lags.start, times.start - past.stop + 1), min(lags.stop, times.stop - past.start))
    past = range(max(past.start, times.start - lags.stop + 1), min(past.stop, times.stop - lags.start))
    if times and lags and past:
        now, before = Region(times, to), Region(past, source)
        yield Product(before, now, lags, k) if transposed else Product(now, before, lags, k)


def _runs(items: range, keys: Sequence[Any]) -> Iterator[tuple[Any, range]]:
    """Neighbouring items with equal keys, and that key."""
    start = items.start
    for value, group in groupby(keys):
        stop = start + sum(1 for _ in group)
        yield value, range(start, stop)
        start = stop


def _join(channels: list[range], blocks: range) -> range:
    return range(channels[blocks[0]].start, channels[blocks[-1]].stop)
