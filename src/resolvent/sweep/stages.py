"""The sweep in stages that a fused kernel can run, with large products between them.

The channels are cut into windows. A stage is a block, or a tile of a wide one, at the times of a time block, with all
that it pulls from earlier stages of its window; narrow neighbouring blocks are one stage, and so are, in 16 bits, equal
ones of some widths. What reaches from window to window, or over a long past, is a product.
"""

from functools import cache, lru_cache
from itertools import groupby
from math import gcd
from typing import NamedTuple

from ..structure.operator import Product, Rectangle
from ..structure.partition import Partition
from .plan import Activate, Plan

PULLED = 2048  # longer pasts than this, in entries of z, are products
NARROW, GROUP = 8, 128  # blocks up to this width make stages of up to so many channels
WIDE, WIDE_GROUP = (16, 32, 64), 256  # in 16 bits, equal blocks of one of these widths, if most channels are theirs
TILE = 64  # channels of a stage of one block; not fewer than a narrow one has
SPAN = 4  # chunks of steps that share the products of all lags longer than they are
COVERED = 1024  # up to so many channels, or in 16 bits, Q is one product


def _window(partition: Partition, half: bool = False) -> int:
    """How many channels one launch solves: few where stages are narrow, many where products are cheap."""
    widest = max(partition.sizes)
    return 1024 if half else 256 if NARROW < widest <= 2 * NARROW else 512


class Stage(NamedTuple):
    times: range
    channels: range
    blocks: tuple[int, ...]
    code: int  # of σ, or -1 for none


class Past(NamedTuple):
    """What all that was solved brings to these times at these lags, from all channels to all."""

    times: range
    lags: range


class Schedule(NamedTuple):
    """The sweep as launches of the kernel, each over a range of stages, and products of the library between them."""

    steps: list[tuple[range | Product | Past, bool]]
    """With each, whether it is a product onto what none was added to before."""
    zeros: bool  # whether y must begin with zeros, since something is fresh in one part and not in another
    stages: list[list[int]]
    """Each: the times and the channels where it begins and ends, where its window begins, its σ, whether it is a group,
    its first source, where its others begin and end, whether products were added to it, and the bound of its chunk."""
    sources: list[list[int]]
    """Each a lag and the channels where it begins and ends; after the last channel come those of the next step."""
    unit: int  # the tables count channels in units of so many, so that the kernel sees how its reads are aligned
    chunked: bool  # whether at long lags a stage pulls from its chunk alone
    grouped: int
    """1 where narrow blocks share stages, the width of the wide ones that do, or 0."""
    lags: int  # that the kernel reads of W
    times: int  # steps of the longest stage
    width: int  # channels of the widest stage
    stride: int  # between the rows of W as the kernel reads it: all channels, or those of one of several even windows


@lru_cache(maxsize=256)
def schedule_of(
    plan: Plan, codes: bytes, half: bool = False, taps: int = 0, space: int = 1, tiles: bool = True
) -> Schedule:
    """How the kernel runs a plan, in 32 bits or, if half, in 16; a convolution has so many taps, in such a space.

    If a program takes its samples one by one, there are no tiles to multiply.
    """
    matrices = plan.connections.matrices * max(1, taps)
    lags = range(len(matrices))
    blocks = [range(block.start, block.stop) for block in plan.partition.blocks]
    window_of = _windows(blocks, _window(plan.partition, half)) if taps or len(lags) == 1 else [0] * len(blocks)
    long = range(plan.connections.time_block, 1 if taps else len(lags))
    whole = len(long) * plan.partition.total <= PULLED  # of a longer past, only what lies in the same chunk is pulled
    near = long if whole else range(long.start, plan.chunk if plan.chunk * plan.partition.total <= PULLED else 0)
    pulled = [lag for lag in lags if lag not in long or lag in near]
    block_at = {channel: i for i, block in enumerate(blocks) for channel in (block.start, block.stop - 1)}
    ends = {max(blocks[i].stop for i in members) for _, members in groupby(range(len(blocks)), window_of.__getitem__)}
    even = not (plan.transposed or taps or half) and ends == set(range(min(ends), plan.partition.total + 1, min(ends)))
    stride = min(ends) if even else plan.partition.total
    single_steps = not taps and plan.connections.time_block == 1  # of which the past is one vector
    widest, wide = max(plan.partition.sizes), 0
    if half and tiles and not taps and len(lags) == 1:
        count, narrow = plan.partition.sizes.count, sum(size <= NARROW for size in plan.partition.sizes)
        main = max(WIDE, key=lambda width: width * count(width))
        wide = main if 2 * main * count(main) > plan.partition.total and count(main) > narrow else 0
    joined = (wide,) if wide else range(NARROW + 1)  # widths of blocks that may share a stage
    # channels of a group: of narrow blocks beside wide ones, no more than other stages have
    most = WIDE_GROUP if wide else GROUP if widest <= NARROW else min(TILE, max(16, widest))

    @cache
    def reads(lag: int, i: int) -> list[bool]:
        """Which blocks the stage of block i pulls from at this lag."""
        if lag not in pulled:
            return [False] * len(blocks)
        row = [rows[i] for rows in matrices[lag]] if plan.transposed else matrices[lag][i]
        return [connected and window_of[i] == window for connected, window in zip(row, window_of, strict=True)]

    def joins(stage: Stage, i: int) -> bool:
        """Whether block i can join a stage: by its width and σ, and fed by all of it and by what feeds it."""
        first, *_ = stage.blocks
        if not (len(blocks[i]) in joined and len(blocks[first]) in joined and codes[i] == codes[first]):
            return False
        if taps or len(stage.times) > 1 or len(stage.channels) + len(blocks[i]) > most:
            return False
        mine, theirs = reads(0, i), reads(0, first)
        return (
            all(mine[j] for j in stage.blocks)
            and all(a == b for j, (a, b) in enumerate(zip(mine, theirs, strict=True)) if j not in stage.blocks)
            and all(reads(lag, i) == reads(lag, first) for lag in lags[1:])
        )

    sources: list[list[int]] = []
    time_stop = max((step.region.times.stop for step in plan.steps if isinstance(step, Activate)), default=0)

    def reached(times: range) -> range:
        """The lags at which some of these times find a step to pull from."""
        chunk = plan.chunk_of(times.start)
        if plan.transposed:
            steps, near_steps = time_stop - times[0], min(time_stop, chunk.stop) - times[0]
        else:
            steps, near_steps = times[-1] + 1, times[-1] + 1 - chunk.start
        if not whole:
            steps = max(near_steps, min(steps, long.start))
        return range(max(0, plan.history - times[-1]) if plan.transposed else 0, min(steps, len(pulled)))

    @cache
    def runs_at(lag: int, members: tuple[int, ...]) -> list[tuple[int, int]]:
        """Where the channels begin and end that a stage pulls at this lag."""
        runs, start = [], 0
        row = (c and not (lag == 0 and j in members) for j, c in enumerate(reads(lag, members[0])))
        for connected, run in groupby(row):
            stop = start + len(list(run))
            if connected:
                runs.append((blocks[start].start, blocks[stop - 1].stop))
            start = stop
        return runs

    @cache
    def pulls(members: tuple[int, ...], at: range) -> list[int]:
        """The first source of a stage, and where the others stand."""
        runs: list[list[int]] = []  # the lag, and where its channels begin and end
        for lag in at if plan.transposed or taps else reversed(at):  # as their steps follow each other
            for begin, end in runs_at(lag, members):
                offset = abs(lag - runs[-1][0]) * plan.partition.total if runs else 0
                if single_steps and runs and runs[-1][2] == offset + begin:
                    runs[-1][2] = offset + end
                else:
                    runs.append([lag, begin, end])
        first, *others = runs or [[0, 0, 0]]
        sources.extend([first, *others])
        return [*first, len(sources) - len(others), len(sources)]

    # lags at which the past of a chunk is a `Past`; of 16 bits, it would round the sums of its groups of lags
    far_lags = range(0) if whole or half or plan.chunk == plan.connections.time_block else long
    far_lags = far_lags if all(all(map(all, matrices[lag])) for lag in far_lags) else range(0)
    span = SPAN * plan.chunk
    solving = together = range(0)  # the chunk, and the span of chunks, whose past has been brought
    steps: list[tuple[range | Product | Past, bool]] = []
    stages: list[list[int]] = []
    waiting: list[Stage] = []
    touched: set[tuple[int, int]] = set()  # the (time, block) that products were added to
    mixed = False

    def flush() -> None:
        nonlocal mixed
        if waiting:
            steps.append((range(len(stages), len(stages) + len(waiting)), False))
        for times, channels, members, code in waiting:
            begin, end = channels.start, channels.stop
            here = {(t, i) for t in times for i in members}
            mixed |= bool(here & touched) and not here <= touched
            row = [times.start, times.stop, begin, end, begin // stride * stride, code, int(len(members) > 1)]
            chunk = plan.chunk_of(times.start)
            bound = -1 if whole else chunk.stop if plan.transposed else chunk.start
            source = pulls(members, lags if taps else reached(times))
            stages.append([*row, *source, int(bool(here & touched)), bound])
        waiting.clear()

    def wait(times: range, i: int, code: int) -> None:
        for start in range(blocks[i].start, blocks[i].stop, TILE):
            waiting.append(Stage(times, range(start, min(start + TILE, blocks[i].stop)), (i,), code))

    def multiply(step: Product | Past, onto: set[tuple[int, int]]) -> None:
        nonlocal touched, mixed
        flush()
        steps.append((step, not onto & touched))
        mixed |= bool(onto & touched) and not onto <= touched
        touched |= onto

    def bring(times: range, lags: range) -> None:
        """A product with the past of these times, if they have any at these lags."""
        times = range(times.start, min(times.stop, time_stop))
        before = time_stop - times.stop if plan.transposed else times.start
        if lags and before and before + len(times) > lags.start:
            multiply(Past(times, lags), {(t, i) for t in times for i in range(len(blocks))})

    for step in plan.steps:
        if isinstance(step, Product):
            to, source = (block_at[part.channels.start] for part in (step.to, step.source))
            later, earlier = (step.source, step.to) if plan.transposed else (step.to, step.source)
            far = step.lags.start in long and earlier.times.stop <= plan.chunk_of(later.times.start).start
            if far and far_lags:
                continue
            if window_of[to] != window_of[source] or step.lags.start not in pulled or (far and not whole):
                onto = range(to, 1 + block_at[step.to.channels.stop - 1])
                multiply(step, {(t, i) for t in step.to.times for i in onto})
            continue
        if far_lags and step.region.times.start not in solving:
            solving = plan.chunk_of(step.region.times.start)
            if solving.start not in together:
                start = solving.start - (solving.start - plan.history) % span
                together = range(start, start + span)
                bring(together, far_lags[span:])
            bring(solving, far_lags[:span])
        times, block = range(space) if taps else step.region.times, blocks[step.block]
        last = waiting[-1] if waiting else None
        if last and last.times == times and joins(last, step.block):
            channels = range(min(last.channels.start, block.start), max(last.channels.stop, block.stop))
            waiting[-1] = last._replace(channels=channels, blocks=(*last.blocks, step.block))
        else:
            wait(times, step.block, codes[step.block])
    flush()
    if plan.transposed and plan.history:  # steps before the first get cotangents, too
        for start in reversed(range(0, plan.history, span)):
            bring(range(start, min(start + span, plan.history)), far_lags)
        for t in reversed(range(plan.history)):
            for i in range(len(blocks)):
                wait(range(t, t + 1), i, code=-1)
        flush()
    longest, width = (max((s[i + 1] - s[i] for s in stages), default=1) for i in (0, 2))
    unit = gcd(16, stride, *(s[i] for s in stages for i in (2, 3, 4)), *(end for s in sources for end in s[1:]))
    for table, columns in ((stages, (2, 3, 4, 8, 9)), (sources, (1, 2))):
        for row in table:
            for column in columns:
                row[column] //= unit
    if mixed:
        steps = [(step, False) for step, _ in steps]
    grouped = max(wide, 1) if any(s[6] for s in stages) else 0
    return Schedule(
        steps,
        mixed,
        stages,
        sources,
        unit,
        not whole,
        grouped,
        len(pulled),
        longest,
        width,
        stride,
    )


def _windows(blocks: list[range], most: int) -> list[int]:
    """The window of each block: halves of the blocks, as the plan takes them, until they are small enough."""

    def split(part: range) -> list[range]:
        if len(part) == 1 or blocks[part[-1]].stop - blocks[part[0]].start <= most:
            return [part]
        return split(part[: len(part) // 2]) + split(part[len(part) // 2 :])

    return [window for window, part in enumerate(split(range(len(blocks)))) for _ in part]


@lru_cache(maxsize=256)
def cover(plan: Plan, half: bool) -> tuple[list[Rectangle], list[slice]]:
    """The read part of a dense W: rectangles between windows, and the windows; one, where launches cost more."""
    blocks, total = [range(block.start, block.stop) for block in plan.partition.blocks], plan.partition.total
    most = total if half or total <= COVERED else COVERED // 2
    window_of = dict(zip((b.start for b in blocks), _windows(blocks, most), strict=True))
    between = [r for r in plan.rectangles if window_of[r.to.start] != window_of[r.source.start]]
    windows = [list(members) for _, members in groupby(blocks, key=lambda block: window_of[block.start])]
    return between, [slice(window[0].start, window[-1].stop) for window in windows]
