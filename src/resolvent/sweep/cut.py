"""How the kernel cuts a system: channels into windows, blocks into stages, and which past a stage pulls itself."""

from functools import cache
from itertools import groupby
from typing import NamedTuple

from ..structure.operator import CONVOLUTION, Form
from ..structure.partition import Partition
from .plan import Loop
from .system import System

PULLED = 2048  # longer pasts than this, in entries of z, are products
NARROW, GROUP = 8, 128  # blocks up to this width make stages of up to so many channels
WIDE, WIDE_GROUP = (16, 32, 64), 256  # in 16 bits, equal blocks of one of these widths, if most channels are theirs
TILE = 64  # channels of a stage of one block; not fewer than a narrow one has


class Stage(NamedTuple):
    times: range
    channels: range
    blocks: tuple[int, ...]
    code: int  # of σ, or -1 for none


def form_of(system: System) -> Form:
    """The operator as integers: without them, no kernel would run it."""
    assert system.form is not None
    return system.form


class Cut:
    """Blocks of which the codes agree may share a stage; if a program takes samples one by one, there are no tiles."""

    def __init__(self, system: System, codes: tuple[int, ...], half: bool, tiles: bool):
        form = form_of(system)
        partition, time_block, first = system.partition, system.connections.time_block, system.steps[0]
        self.codes, self.total, self.transposed = codes, partition.total, system.transposed
        self.blocks = [range(block.start, block.stop) for block in partition.blocks]
        self.taps = form.kernel[-1] if form.kind == CONVOLUTION else 0
        self.matrices = system.connections.matrices * max(1, self.taps)
        self.lags = range(len(self.matrices))
        # without lags, nothing waits for earlier steps, but a stage is of one time block
        self.loop = first if isinstance(first, Loop) else Loop(time_block, system.steps)
        self.long = range(time_block, 1 if self.taps else len(self.lags))
        self.whole = len(self.long) * self.total <= PULLED  # of a longer past, only what lies in its chunk is pulled
        self.pulled = self.lags
        if not self.whole:
            self.pulled = self.lags[: self.loop.stride if self.loop.stride * self.total <= PULLED else time_block]
        self.single_steps = not self.taps and time_block == 1  # of which the past is one vector
        windowed = self.taps or len(self.lags) == 1
        cut = windows(self.blocks, _window(partition, half)) if windowed else [self.blocks]
        self.window_of = [i for i, blocks in enumerate(cut) for _ in blocks]
        ends = [blocks[-1].stop for blocks in cut]
        even = ends == [*range(ends[0], self.total + 1, ends[0])] and not (self.transposed or self.taps or half)
        self.stride = ends[0] if even else self.total  # between the rows of W as the kernel reads it
        self.wide = self._wide(partition) if half and tiles and windowed and not self.taps else 0
        self.joined = (self.wide,) if self.wide else range(NARROW + 1)  # widths of blocks that may share a stage
        widest = max(partition.sizes)
        # channels of a group: of narrow blocks beside wide ones, no more than other stages have
        self.most = WIDE_GROUP if self.wide else GROUP if widest <= NARROW else min(TILE, max(16, widest))
        self.reads, self.runs = cache(self._reads), cache(self._runs)

    def joins(self, stage: Stage, i: int) -> bool:
        """Whether block i can join a stage: by its width and σ, and fed by all of it and by what feeds it."""
        first, width = stage.blocks[0], len(self.blocks[i])
        if not (width in self.joined and len(self.blocks[first]) in self.joined and self.codes[i] == self.codes[first]):
            return False
        if self.taps or len(stage.times) > 1 or len(stage.channels) + width > self.most:
            return False
        mine, theirs = self.reads(0, i), self.reads(0, first)
        return (
            all(mine[j] for j in stage.blocks)
            and all(a == b for j, (a, b) in enumerate(zip(mine, theirs, strict=True)) if j not in stage.blocks)
            and all(self.reads(lag, i) == self.reads(lag, first) for lag in self.lags[1:])
        )

    def tiles(self, i: int) -> list[range]:
        """The channels of each stage that block i would make alone."""
        block = self.blocks[i]
        return [range(start, min(start + TILE, block.stop)) for start in range(block.start, block.stop, TILE)]

    def _reads(self, lag: int, i: int) -> list[bool]:
        """Which blocks the stage of block i pulls from at this lag."""
        if lag not in self.pulled:
            return [False] * len(self.blocks)
        row = [rows[i] for rows in self.matrices[lag]] if self.transposed else self.matrices[lag][i]
        window = self.window_of[i]
        return [connected and of == window for connected, of in zip(row, self.window_of, strict=True)]

    def _runs(self, lag: int, members: tuple[int, ...]) -> list[tuple[int, int]]:
        """Where the channels begin and end that a stage of these blocks pulls at this lag."""
        runs, start = [], 0
        row = (read and not (lag == 0 and j in members) for j, read in enumerate(self.reads(lag, members[0])))
        for read, run in groupby(row):
            stop = start + len(list(run))
            if read:
                runs.append((self.blocks[start].start, self.blocks[stop - 1].stop))
            start = stop
        return runs

    def _wide(self, partition: Partition) -> int:
        """The width of the wide blocks that share stages, or 0."""
        count, narrow = partition.sizes.count, sum(size <= NARROW for size in partition.sizes)
        main = max(WIDE, key=lambda width: width * count(width))
        return main if 2 * main * count(main) > partition.total and count(main) > narrow else 0


def _window(partition: Partition, half: bool = False) -> int:
    """How many channels one launch solves: few where stages are narrow, many where products are cheap."""
    widest = max(partition.sizes)
    return 1024 if half else 256 if NARROW < widest <= 2 * NARROW else 512


def windows(blocks: list[range], most: int) -> list[list[range]]:
    """Halves of the blocks, as the plan takes them, until they are small enough."""
    half = len(blocks) // 2
    if half == 0 or blocks[-1].stop - blocks[0].start <= most:
        return [blocks]
    return windows(blocks[:half], most) + windows(blocks[half:], most)
