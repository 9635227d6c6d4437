"""The sweep in stages that a fused kernel can run, with large products between them.

The channels are cut into windows. A stage is a block, or a tile of a wide one, at the times of a time block, with all
that it pulls from earlier stages of its window; narrow neighbouring blocks are one stage, and so are, in 16 bits, equal
ones of some widths. What reaches from window to window, or over a long past, is a product.
"""

from functools import cache, lru_cache
from math import gcd
from typing import NamedTuple

from ..structure.operator import DENSE, Product, Rectangle
from .cut import Cut, Stage, form_of, windows
from .plan import Activated, unrolled
from .system import System

COVERED = 1024  # up to so many channels, or in 16 bits, Q is one product


class Extent(NamedTuple):
    """What a sweep has besides its system: time steps, of which the first ones are given, or positions in space."""

    steps: int = 1
    history: int = 0
    space: int = 1


class Schedule(NamedTuple):
    """The sweep as launches of the kernel, each over a range of stages, and products of the library between them."""

    steps: list[tuple[range | Product, bool]]
    """With each, whether it is a product that is written, since nothing was added before, instead of added."""
    zeros: bool  # whether y must begin with zeros, since nothing was added yet to some of what a product adds to
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

    @property
    def products(self) -> bool:
        return not all(isinstance(step, range) for step, _ in self.steps)


@lru_cache(maxsize=256)
def schedule_of(
    system: System, extent: Extent, codes: tuple[int, ...], half: bool = False, tiles: bool = True
) -> Schedule:
    """How the kernel runs a system, in 32 bits or, if half, in 16; blocks with equal codes have the same σ.

    If a program takes its samples one by one, there are no tiles to multiply.
    """
    cut = Cut(system, codes, half, tiles)
    walk, times = _Walk(cut, extent), range(extent.history, extent.steps)
    for step in unrolled(system.rectangles, system.partition, (cut.loop,), system.transposed, times):
        walk.activate(step) if isinstance(step, Activated) else walk.multiply(step)
    return walk.schedule(only_adds=form_of(system).kind != DENSE)


@lru_cache(maxsize=256)
def cover(system: System, half: bool) -> tuple[list[Rectangle], list[slice]]:
    """The read part of a dense W: rectangles between windows, and the windows; one, where launches cost more."""
    blocks, total = [range(block.start, block.stop) for block in system.partition.blocks], system.partition.total
    parts = windows(blocks, total if half or total <= COVERED else COVERED // 2)
    window_at = {block.start: i for i, part in enumerate(parts) for block in part}
    between = [r for r in system.rectangles if window_at[r.to.start] != window_at[r.source.start]]
    return between, [slice(part[0].start, part[-1].stop) for part in parts]


class _Walk:
    """Along a plan: stages wait until a product, or the end, makes a launch of them."""

    def __init__(self, cut: Cut, extent: Extent):
        self.cut, self.extent = cut, extent
        self.block_at = {channel: i for i, b in enumerate(cut.blocks) for channel in (b.start, b.stop - 1)}
        self.steps: list[tuple[range | Product, bool]] = []
        self.stages: list[list[int]] = []
        self.sources: list[list[int]] = []
        self.waiting: list[Stage] = []
        self.added: set[tuple[int, int]] = set()  # the (time, block) that products were added to
        self.partly = False  # whether to some of a stage or of a product, and to some not
        self.pulls = cache(self._pulls)

    def activate(self, step: Activated) -> None:
        """The block joins the last stage, or makes stages of its own."""
        cut, block = self.cut, self.cut.blocks[step.block]
        times = range(self.extent.space) if cut.taps else step.region.times
        last = self.waiting[-1] if self.waiting else None
        if last and last.times == times and cut.joins(last, step.block):
            channels = range(min(last.channels.start, block.start), max(last.channels.stop, block.stop))
            self.waiting[-1] = last._replace(channels=channels, blocks=(*last.blocks, step.block))
        else:
            self._wait(times, step.block, cut.codes[step.block])

    def multiply(self, step: Product) -> None:
        """A product of the library, unless stages pull it themselves."""
        cut = self.cut
        to, source = (self.block_at[part.channels.start] for part in (step.to, step.source))
        later, earlier = (step.source, step.to) if cut.transposed else (step.to, step.source)
        far = step.lags.start in cut.long and earlier.times.stop <= self._chunk_of(later.times.start).start
        near = step.lags.start in cut.pulled and (cut.whole or not far)
        if near and cut.window_of[to] == cut.window_of[source]:
            return
        self._launch()
        blocks = range(to, 1 + self.block_at[step.to.channels.stop - 1])
        onto = {(t, i) for t in step.to.times for i in blocks}
        self.steps.append((step, not self._was_added(onto)))
        self.added |= onto

    def schedule(self, only_adds: bool) -> Schedule:
        """Of an operator that only adds its products, or of one that may write them."""
        self._launch()
        if self.cut.transposed:  # steps before the first get cotangents, too
            for t in reversed(range(self.extent.history)):
                for i in range(len(self.cut.blocks)):
                    self._wait(range(t, t + 1), i, code=-1)
            self._launch()
        cut, stages, sources = self.cut, self.stages, self.sources
        longest, width = (max((s[i + 1] - s[i] for s in stages), default=1) for i in (0, 2))
        unit = gcd(16, cut.stride, *(s[i] for s in stages for i in (2, 3, 4)), *(end for s in sources for end in s[1:]))
        for table, columns in ((stages, (2, 3, 4, 8, 9)), (sources, (1, 2))):
            for row in table:
                for column in columns:
                    row[column] //= unit
        zeros = self.partly or (only_adds and bool(self.added))
        steps = [(step, written and not zeros) for step, written in self.steps]
        grouped = max(cut.wide, 1) if any(s[6] for s in stages) else 0
        tables = steps, zeros, stages, sources, unit
        return Schedule(*tables, not cut.whole, grouped, len(cut.pulled), longest, width, cut.stride)

    def _wait(self, times: range, i: int, code: int) -> None:
        self.waiting += (Stage(times, tile, (i,), code) for tile in self.cut.tiles(i))

    def _launch(self) -> None:
        if self.waiting:
            self.steps.append((range(len(self.stages), len(self.stages) + len(self.waiting)), False))
        self.stages += map(self._row, self.waiting)
        self.waiting.clear()

    def _row(self, stage: Stage) -> list[int]:
        """As the kernel reads it."""
        (times, channels, blocks, code), cut, chunk = stage, self.cut, self._chunk_of(stage.times.start)
        added = self._was_added({(t, i) for t in times for i in blocks})
        window = channels.start // cut.stride * cut.stride
        bound = -1 if cut.whole else chunk.stop if cut.transposed else chunk.start
        source = self.pulls(blocks, cut.lags if cut.taps else self._reached(times))
        ends = times.start, times.stop, channels.start, channels.stop
        return [*ends, window, code, int(len(blocks) > 1), *source, int(added), bound]

    def _was_added(self, onto: set[tuple[int, int]]) -> bool:
        """Whether products were added to any of it."""
        added = bool(onto & self.added)
        self.partly |= added and not onto <= self.added
        return added

    def _chunk_of(self, step: int) -> range:
        """The steps, solved between products with all that came before them, that a time step belongs to."""
        history, stride = self.extent.history, self.cut.loop.stride
        start = history + (step - history) // stride * stride
        return range(start, start + stride)

    def _reached(self, times: range) -> range:
        """The lags at which some of these times find a step to pull from."""
        (stop, history, _), cut, chunk = self.extent, self.cut, self._chunk_of(times.start)
        if cut.transposed:
            steps, near_steps = stop - times[0], min(stop, chunk.stop) - times[0]
        else:
            steps, near_steps = times[-1] + 1, times[-1] + 1 - chunk.start
        if not cut.whole:
            steps = max(near_steps, min(steps, cut.long.start))
        return range(max(0, history - times[-1]) if cut.transposed else 0, min(steps, len(cut.pulled)))

    def _pulls(self, blocks: tuple[int, ...], lags: range) -> list[int]:
        """The first source of a stage, and where the others stand."""
        runs: list[list[int]] = []  # the lag, and where its channels begin and end
        for lag in lags if self.cut.transposed or self.cut.taps else reversed(lags):  # as their steps follow each other
            for begin, end in self.cut.runs(lag, blocks):
                offset = abs(lag - runs[-1][0]) * self.cut.total if runs else 0
                if self.cut.single_steps and runs and runs[-1][2] == offset + begin:
                    runs[-1][2] = offset + end
                else:
                    runs.append([lag, begin, end])
        first, *others = runs or [[0, 0, 0]]
        self.sources.extend([first, *others])
        return [*first, len(self.sources) - len(others), len(self.sources)]
