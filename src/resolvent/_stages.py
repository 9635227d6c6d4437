"""The sweep in stages that a fused kernel can run, with large products between them.

The channels are cut into windows. A stage is a block, at the times of a time block, with all that it pulls from earlier
stages of its window; narrow neighbouring blocks are one stage. What reaches from window to window, or over a long past,
is a product.
"""

from functools import lru_cache
from itertools import groupby
from math import gcd
from typing import NamedTuple

from ._operators import Product, Rectangle
from ._partition import Partition
from ._plan import Plan

PULLED = 2048  # longer pasts than this, in entries of z, are products
NARROW, GROUP = 8, 32  # blocks up to this width make stages of up to so many channels


def _window(partition: Partition, half: bool = False) -> int:
    """How many channels one launch solves: few where blocks are narrow, many where products are cheap."""
    return 128 if max(partition.sizes) <= 2 * NARROW else 512 if half else 256


class Schedule(NamedTuple):
    """The sweep as launches of the kernel, each over a range of stages, and products of the library between them."""

    steps: tuple[range | Product, ...]
    stages: list[list[int]]
    sources: list[list[int]]
    unit: int  # channels are counted in the tables in units of so many, so that the kernel sees how its reads are aligned
    grouped: bool
    times: int  # steps of the longest stage
    width: int  # channels of the widest stage
    stride: int  # between the rows of W as the kernel reads it: all channels, or those of one of several even windows


@lru_cache(maxsize=256)
def schedule_of(plan: Plan, codes: bytes, half: bool = False) -> Schedule:
    """How the kernel runs a plan, in 32 bits or, if half, in 16."""
    matrices, lags = plan.connections.matrices, range(len(plan.connections.matrices))
    blocks = [range(block.start, block.stop) for block in plan.partition.blocks]
    window_of = _windows(blocks, _window(plan.partition, half)) if len(lags) == 1 else [0] * len(blocks)
    long = range(plan.connections.time_block, len(lags))
    pulled = [lag for lag in lags if lag not in long or len(long) * plan.partition.total <= PULLED]
    block_at = {channel: i for i, block in enumerate(blocks) for channel in (block.start, block.stop - 1)}

    def reads(lag: int, i: int) -> list[bool]:
        """Which blocks the stage of block i pulls from at this lag."""
        if lag not in pulled:
            return [False] * len(blocks)
        row = [rows[i] for rows in matrices[lag]] if plan.transposed else matrices[lag][i]
        return [connected and window_of[i] == window for connected, window in zip(row, window_of, strict=True)]

    ends = {max(blocks[i].stop for i in members) for _, members in groupby(range(len(blocks)), window_of.__getitem__)}
    even = not plan.transposed and ends == set(range(min(ends), plan.partition.total + 1, min(ends)))
    stride = min(ends) if even else plan.partition.total
    stages: list[list[int]] = []
    sources: list[list[int]] = []

    def add_stage(times: range, members: list[int], code: int) -> None:
        pulls: list[list[int]] = []  # the lag, and where its channels begin and end
        for lag in lags:
            row = reads(lag, members[0])
            if lag == 0:
                row = [connected and j not in members for j, connected in enumerate(row)]
            position = 0
            for connected, run in groupby(row):
                stop = position + len(list(run))
                if connected:
                    pulls.append([lag, blocks[position].start, blocks[stop - 1].stop])
                position = stop
        first, *others = pulls or [[0, 0, 0]]
        span = min(blocks[i].start for i in members), max(blocks[i].stop for i in members)
        row = [times.start, times.stop, *span, code, int(len(members) > 1), *first, len(sources) + 1]
        sources.extend([first, *others])
        stages.append([*row, len(sources), 0 if stride == plan.partition.total else span[0] // stride * stride])

    def joins(members: list[int], i: int) -> bool:
        """Whether block i can join a stage: narrow, of the same σ, and fed by all of it and by what feeds it."""
        if max(len(blocks[i]), len(blocks[members[0]])) > NARROW or codes[i] != codes[members[0]]:
            return False
        if sum(len(blocks[j]) for j in members) + len(blocks[i]) > GROUP:
            return False
        mine, theirs = reads(0, i), reads(0, members[0])
        return (
            all(mine[j] for j in members)
            and all(a == b for j, (a, b) in enumerate(zip(mine, theirs, strict=True)) if j not in members)
            and all(reads(lag, i) == reads(lag, members[0]) for lag in lags[1:])
        )

    steps: list[range | Product] = []
    waiting: list[tuple[range, list[int]]] = []

    def flush() -> None:
        first = len(stages)
        for times, members in waiting:
            add_stage(times, members, codes[members[0]])
        waiting.clear()
        if len(stages) > first:
            steps.append(range(first, len(stages)))

    for step in plan.steps:
        if isinstance(step, Product):
            to, source = (block_at[part.channels.start] for part in (step.to, step.source))
            if window_of[to] != window_of[source] or step.lags.start not in pulled:
                flush()
                steps.append(step)
            continue
        times = step.region.times
        if waiting and len(times) == 1 and waiting[-1][0] == times and joins(waiting[-1][1], step.block):
            waiting[-1][1].append(step.block)
        else:
            waiting.append((times, [step.block]))
    flush()
    if plan.transposed and plan.history:  # steps before the first get cotangents, too
        first = len(stages)
        for t in reversed(range(plan.history)):
            for i in range(len(blocks)):
                add_stage(range(t, t + 1), [i], code=-1)
        steps.append(range(first, len(stages)))
    longest, widest = max(s[1] - s[0] for s in stages), max(s[3] - s[2] for s in stages)
    unit = gcd(16, stride, *(s[i] for s in stages for i in (2, 3, 11)), *(end for s in sources for end in s[1:]))
    for rows, columns in ((stages, (2, 3, 7, 8, 11)), (sources, (1, 2))):
        for row in rows:
            for column in columns:
                row[column] //= unit
    return Schedule(tuple(steps), stages, sources, unit, any(s[5] for s in stages), longest, widest, stride)


def _windows(blocks: list[range], most: int) -> list[int]:
    """The window of each block: halves of the blocks, as the plan takes them, until they are small enough."""

    def split(part: range) -> list[range]:
        if len(part) == 1 or blocks[part[-1]].stop - blocks[part[0]].start <= most:
            return [part]
        return split(part[: len(part) // 2]) + split(part[len(part) // 2 :])

    return [window for window, part in enumerate(split(range(len(blocks)))) for _ in part]


@lru_cache(maxsize=256)
def cover(plan: Plan) -> tuple[list[Rectangle], list[slice]]:
    """The read part of a dense W: rectangles between windows, and the windows."""
    blocks = [range(block.start, block.stop) for block in plan.partition.blocks]
    window_of = dict(zip((b.start for b in blocks), _windows(blocks, _window(plan.partition)), strict=True))
    between = [r for r in plan.rectangles if window_of[r.to.start] != window_of[r.source.start]]
    windows = [list(members) for _, members in groupby(blocks, key=lambda block: window_of[block.start])]
    return between, [slice(window[0].start, window[-1].stop) for window in windows]
