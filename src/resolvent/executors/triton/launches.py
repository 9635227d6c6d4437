"""How the kernel sweeps a system: what it is compiled for, and the tables that it reads, which stay on the GPU."""

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...structure.operator import CONVOLUTION, DENSE, LAGGED
from ...structure.sigma import FUNCTION, SLOPE_AT
from ...sweep.cut import form_of
from ...sweep.stages import Extent, Schedule, schedule_of
from ...sweep.system import System
from .kernel import FIELDS, sweep_kernel
from .launch import outside_of_graphs, power_of_2

INDEX_LIMIT = 2**31  # entries of a program's samples from which their places need 64 bits


class Given(NamedTuple):
    """What the kernel is compiled for of what a sweep is given."""

    inputs: int  # channels of y0
    mode: int  # of σ
    bias: bool
    z0: bool
    value: bool  # σ(point)
    inside: bool


class Launches(NamedTuple):
    schedule: Schedule
    stride: int  # between the sources of W as the kernel reads it, or 0 where W* would be as good
    longest_first: Tensor | None  # lags, so that they follow each other as the steps of the past do
    tables: tuple[Tensor, ...]
    constants: tuple  # at compile time
    samples: int  # of one program
    loads: int  # that are on their way at a time
    compiled: dict[Any, Any]  # the kernels for these constants, by what else they depend on


@lru_cache(maxsize=1024)
@outside_of_graphs
def launches(
    system: System, extent: Extent, samples: int, given: Given, precision: str, dtype: torch.dtype, device: torch.device
) -> Launches:
    """For about so many samples for each program."""
    kind, half = form_of(system).kind, dtype.itemsize == 2
    codes = system.codes if given.mode in (FUNCTION, SLOPE_AT) else None
    codes = codes or (0,) * len(system.partition)  # slopes that are given are alike for all σ
    schedule = schedule_of(system, extent, codes, half, tiles=kind == CONVOLUTION or samples > 2)
    tiles = _tiles(system, schedule, extent, samples, precision, half)
    # a sum of vectors may as well go along the sources of W, and so may matrix instructions, which saves its copy
    reverse = kind == LAGGED and not system.transposed and schedule.lags > 1
    longest_first = torch.tensor(range(schedule.lags - 1, -1, -1), device=device) if reverse else None
    copied = (tiles["DOT"] and not half) or schedule.stride < system.partition.total or reverse
    stride = schedule.stride if copied else 0
    named = tiles | _facts(system, schedule, extent, given, stride, reverse)
    named |= dict(SIGMA=given.mode, CODES=sum(1 << code for code in set(codes)), KNOWN=given.value, INSIDE=given.inside)
    constants = tuple(named[name] for name in sweep_kernel.arg_names[-len(named) :])
    loads = 4 if half and schedule.grouped <= 1 else 3  # 16-bit products are over sooner, unless they are wide
    tables, samples = _tables(system, schedule, device), tiles["ROWS"] // tiles["TIMES"]
    return Launches(schedule, stride, longest_first, tables, constants, samples, loads, {})


def _tiles(system: System, schedule: Schedule, extent: Extent, samples: int, precision: str, half: bool) -> dict:
    """What a program multiplies and stores at a time."""
    n, sizes, unit = system.partition.total, system.partition.sizes, schedule.unit
    span, width = schedule.times, max(16, power_of_2(schedule.width))
    rows = power_of_2(span * min(samples, max(1, 16 // span)))
    dot = rows > 2 or span > 1  # one or two samples are cheaper, one by one, as sums of vectors than as tiles
    fewest = 8 if precision == "ieee" and not half else 16  # IEEE float32 has no matrix instructions
    rows = max(rows, fewest) if dot else 1
    in_panels = sizes[0] if set(sizes) in ({1}, {2}, {4}) else 0  # the width of blocks
    # stages of windows pull from hundreds of channels; beside the chain of narrow blocks, 32 at a time are faster
    deep = half or (schedule.products and form_of(system).kind == DENSE and not in_panels)
    depth = min(256, (64 if deep else 32) if dot else 8192 // (rows * width))
    even = all((s[3] - s[2]) * unit == width for s in schedule.stages)
    even = even and not any((stop - start) * unit % depth for _, start, stop in schedule.sources)
    wide_index = rows * extent.steps * extent.space * n >= INDEX_LIMIT
    tiles = dict(TIMES=span, ROWS=rows, N_TILE=width, K_TILE=depth, EVEN=even, WIDE_INDEX=wide_index)
    return tiles | dict(GROUPED=schedule.grouped, WIDTH=in_panels if even else 0, DOT=dot, PRECISION=precision)


def _facts(system: System, schedule: Schedule, extent: Extent, given: Given, stride: int, reverse: bool) -> dict:
    """Where W and points lie, and what is added to what."""
    n, form = system.partition.total, form_of(system)
    source, to = (stride or n, 1) if stride or system.transposed else (1, n)
    conv, longest = form.kind == CONVOLUTION, schedule.lags - 1 if reverse else 0
    row, column = (1, extent.space) if conv else (n, 1)
    masked = given.inside or any(s[5] < 0 for s in schedule.stages)
    facts = dict(n=n, SOURCE=source, TO=to, UNIT=schedule.unit, LONGEST=longest, ROW=row, COLUMN=column, CONV=conv)
    facts |= dict(BEFORE=form.before[-1], CHUNKED=schedule.chunked, LONG=system.connections.time_block, MASKED=masked)
    facts |= dict(INPUTS=given.inputs, HAS_BIAS=given.bias, ADDED=schedule.products, HAS_Z0=given.z0)
    return facts | dict(TRANSPOSED=system.transposed)


def _tables(system: System, schedule: Schedule, device: torch.device) -> tuple[Tensor, ...]:
    """Stages, sources and, for each channel, where its block begins or, for the dual, ends."""
    blocks = system.partition.blocks
    edges = [b.stop if system.transposed else b.start for b in blocks for _ in range(b.start, b.stop)]
    unused = [0] * FIELDS.value  # read as the one after the last
    tables = [*schedule.stages, unused], schedule.sources, edges
    return tuple(torch.tensor(table, dtype=torch.int32, device=device) for table in tables)
