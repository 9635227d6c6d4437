"""The sweep on a GPU: the fused kernel for what is sequential, the library's products for the bulk."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...structure.activation import FUNCTION, SLOPE_AT, Sigma, for_kernels
from ...structure.convolution import Conv
from ...structure.lagged import Lagged
from ...structure.operator import Dense, Operator, Product
from ...sweep.plan import Plan
from ...sweep.stages import Past, Schedule, cover, schedule_of
from .kernel import FIELDS, cotangent_kernel, sweep_kernel
from .launch import elsewhere, kept, prepare, product_precision, readable

PROGRAMS = 132  # as many as a large GPU runs at a time
SMALL = 256  # channels and samples up to which Q is one launch
VAST = 2**31  # entries of a program's samples from which their places need 64 bits
POSITIONS = 64  # of a convolution that one program takes; in larger spaces the library's convolutions are as fast


def serves(operator: Operator, x: Tensor, positions: int) -> bool:
    """Whether the kernels sweep points of so many positions, on the device and in the precision of x."""
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return False
    return not isinstance(operator, Conv) or (len(operator.kernel) == 1 and 0 < positions <= POSITIONS)


def sweep(
    operator: Operator,
    plan: Plan,
    sigma: Sigma,
    weight: Tensor,
    y0: Tensor | None,
    z0: Tensor | None,
    inside: Tensor | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """(y, z), or None where a tensor is not as it must be."""
    mode, codes, point, value = for_kernels(sigma)
    given: Any = z0 if y0 is None else y0
    positions = operator.positions(given)
    if not serves(operator, weight, positions) or (codes is None and mode in (FUNCTION, SLOPE_AT)):
        return None
    read = readable(operator, plan, (weight, bias, y0, z0, point, value, inside))
    if read is None:
        return None
    (weight, bias, y0, z0, point, value, inside), facts = read
    if weight.requires_grad:  # autograd records the sweep as a whole
        weight = weight.detach()
    if elsewhere(weight):
        with torch.cuda.device(weight.device):
            return sweep(operator, plan, sigma, weight, y0, z0, inside, bias)
    batch, inputs, unaligned, _, *addresses = facts
    if inputs == plan.partition.total:
        y = torch.empty_like(given, memory_format=torch.contiguous_format)
    else:
        y = weight.new_empty(operator.full_shape(given))
    z = torch.empty_like(y)
    if not y.numel():
        return y, z
    launches = _launches(
        operator,
        plan,
        codes,
        positions,
        _power_of_2(-(-batch // PROGRAMS)),
        (0 if y0 is None else inputs, bias is not None, z0 is not None, mode, value is not None, inside is not None),
        product_precision(weight),
        weight.dtype,
        weight.device,
    )
    schedule, history = launches.schedule, plan.history
    if schedule.zeros:
        y.zero_()
    if history and not plan.transposed:  # it is given, not computed
        for to, source in ((y, y0), (z, z0)):
            part = to[..., :history, :]
            part.zero_() if source is None else part.copy_(source[..., :history, :])
    W = _source_first(operator, weight, plan.transposed, launches.stride, launches.longest_first)
    launch = prepare(
        sweep_kernel,
        (-(-batch // launches.samples),),
        (y, z, W, bias, y0, z0, point, value, inside),
        None if unaligned else (y.data_ptr(), z.data_ptr(), W.data_ptr(), *addresses),
        launches.tables,
        launches.compiled,
        launches.loads,
    )
    add_product: Any = None
    add_past: Any = None
    for step, fresh in schedule.steps:
        if isinstance(step, Past):
            add_past = add_past or _past(operator, weight, plan, y, z, schedule)
            add_past(*step, fresh)
        elif isinstance(step, Product):
            add_product = add_product or _product(operator, weight, plan.transposed, y.shape)
            add_product(y, z, step, fresh)
        else:
            launch(positions, history, step.start, step.stop, batch, *launches.constants)
    return y, z


def _power_of_2(x: int) -> int:
    """The next one; Triton's own function for it is made for kernels, and slow outside of them."""
    return 1 << (x - 1).bit_length()


def _source_first(
    operator: Operator, weight: Tensor, transposed: bool, stride: int, longest_first: Tensor | None
) -> Tensor:
    """W as [lag, source, to], so that what a program reads lies side by side; of even windows only what is in them."""
    if isinstance(operator, Conv):
        weight = weight.permute(2, 0, 1)
    n = weight.shape[-1]
    if longest_first is not None:
        return weight.mT.index_select(0, longest_first)
    if transposed or not stride:
        return weight.contiguous()
    if stride == n:
        return weight.mT.contiguous()
    row, column = weight.stride()[-2:]
    windows = ((n // stride, stride, stride), (stride * (row + column), column, row), weight.storage_offset())
    return weight.as_strided(*windows).contiguous()  # by one view: see `_product`


def _product(operator: Operator, weight: Tensor, transposed: bool, shape: torch.Size) -> Callable[..., None]:
    """The operator's product on y and z. Of dense ones each part is one view: views take as long as a small product."""
    if not isinstance(operator, Dense):
        product, flat = operator.product(weight, transposed), (-1, *shape[-operator.event_ndim :])
        return lambda y, z, step, fresh: product(y.view(flat), z.view(flat), step, fresh)
    n, (row, column), offset = shape[-1], weight.stride(), weight.storage_offset()
    batch, (row, column) = shape.numel() // n, (column, row) if transposed else (row, column)  # of W or W*

    def add(y: Tensor, z: Tensor, step: Product, fresh: bool) -> None:
        to, source = step.to.channels, step.source.channels
        start = offset + to.start * row + source.start * column
        W = weight.as_strided((len(source), len(to)), (column, row), start)
        y, z = (x.as_strided((batch, len(part)), (n, 1), part.start) for x, part in ((y, to), (z, source)))
        torch.mm(z, W, out=y) if fresh else y.addmm_(z, W)

    return add


def _past(
    operator: Any, weight: Tensor, plan: Plan, y: Tensor, z: Tensor, schedule: Schedule
) -> Callable[[range, range, bool], None]:
    y, z = (x.view(-1, *x.shape[-2:]) for x in (y, z))
    most_times = max(len(step.times) for step, _ in schedule.steps if isinstance(step, Past))
    return operator.past(weight, plan.transposed, y, z, plan.history, most_times)


class Launches(NamedTuple):
    """How the kernel sweeps machines of one kind."""

    schedule: Schedule
    stride: int  # between the sources of W as the kernel reads it, or 0 where W* would be as good
    longest_first: Tensor | None  # lags, so that they follow each other as the steps of the past do
    tables: tuple[Tensor, ...]
    constants: tuple  # at compile time
    samples: int  # of one program
    loads: int  # that are on their way at a time
    compiled: dict[Any, Any]  # the kernels for these constants, by what else they depend on


@lru_cache(maxsize=1024)
@kept
def _launches(
    operator: Operator,
    plan: Plan,
    codes: bytes | None,
    positions: int,
    samples: int,
    given: tuple[int, bool, bool, int, bool, bool],  # channels of y0; bias; z0; what σ is; σ at the point; inside
    precision: str,
    dtype: torch.dtype,
    device: torch.device,
) -> Launches:
    """For about so many samples for each program."""
    codes = codes or bytes(len(plan.partition))
    half, n = dtype.itemsize == 2, plan.partition.total
    if isinstance(operator, Conv):
        schedule = schedule_of(plan, codes, half, operator.kernel[0], positions)
        layout = (1, positions, True, operator.padding[0][0])  # of points and of the kernel
    else:
        schedule, layout = schedule_of(plan, codes, half, tiles=samples > 2), (n, 1, False, 0)
    span, width = schedule.times, max(16, _power_of_2(schedule.width))
    rows = _power_of_2(span * min(samples, max(1, 16 // span)))
    dot = rows > 2 or span > 1  # one or two samples are cheaper, one by one, as sums of vectors than as tiles
    fewest = 8 if dtype == torch.float32 and precision == "ieee" else 16  # IEEE float32 has no matrix instructions
    rows = max(rows, fewest) if dot else 1
    added = not all(isinstance(step, range) for step, _ in schedule.steps)
    in_panels = plan.partition.sizes[0] if set(plan.partition.sizes) in ({1}, {2}, {4}) else 0  # the width of blocks
    # stages of windows pull from hundreds of channels; beside the chain of narrow blocks, 32 at a time are faster
    deep = half or (added and isinstance(operator, Dense) and not in_panels)
    depth = min(256, (64 if deep else 32) if dot else 8192 // (rows * width))
    used = 0
    for code in codes:
        used |= 1 << code
    inputs, has_bias, has_z0, mode, known, inside = given
    # a sum of vectors may as well go along the sources of W, and so may matrix instructions, which saves its copy
    longest_first = None
    if isinstance(operator, Lagged) and not plan.transposed and schedule.lags > 1:
        longest_first = torch.tensor(range(schedule.lags - 1, -1, -1), device=device)
    copied = (dot and not half) or schedule.stride < n or longest_first is not None
    stride = schedule.stride if copied else 0
    strides = (stride or n, 1) if stride or plan.transposed else (1, n)
    constants = (
        n,
        *strides,
        schedule.unit,
        *layout,
        0 if longest_first is None else schedule.lags - 1,
        schedule.chunked,
        plan.connections.time_block,
        plan.transposed,
        inputs,
        has_bias,
        added,
        has_z0,
    )
    unit, vast = schedule.unit, rows * positions * n >= VAST
    even = all((s[3] - s[2]) * unit == width for s in schedule.stages)
    even = even and not any((stop - start) * unit % depth for _, start, stop in schedule.sources)
    silent = inside or any(s[5] < 0 for s in schedule.stages)
    constants += (mode, used, known, inside, silent, span, rows, width, depth, even, vast)
    constants += (schedule.grouped, in_panels if even else 0, dot, precision)
    # where each channel's block begins or, for the dual, ends
    edges = [b.stop if plan.transposed else b.start for b in plan.partition.blocks for _ in range(b.start, b.stop)]
    unused = [0] * FIELDS.value  # read as the one after the last
    tables = ([*schedule.stages, unused], schedule.sources, edges)
    tables = tuple(torch.tensor(table, dtype=torch.int32, device=device) for table in tables)
    loads = 4 if half and schedule.grouped <= 1 else 3  # 16-bit products are over sooner, unless they are wide
    return Launches(schedule, stride, longest_first, tables, constants, rows // span, loads, {})


def cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor, weight: Tensor | None = None) -> Tensor | None:
    """Q by few large products: each window, or each lag, as a whole, and then without what is not read.

    None where v and z are not as they must be, to fit the weight if it is given.
    """
    n = plan.partition.total
    if not serves(operator, v, operator.positions(v)):
        return None
    read = readable(operator, plan, (weight, None, v, z, None, None, None))  # v and z in the places of y0 and z0
    if read is None:
        return None
    (_, _, v, z, *_), facts = read
    if elsewhere(v):
        with torch.cuda.device(v.device):
            return cotangent(operator, plan, v, z, weight)
    batch, channels, unaligned, _, _, *addresses = facts
    if channels != n:
        return None
    if not v.numel():
        return v.new_zeros(operator.weight_shape)
    precision = product_precision(v)
    unread, compiled = _unread(operator, plan, precision, v.dtype, v.device)
    if isinstance(operator, Dense) and n <= SMALL and batch <= SMALL:
        Q, tiles = v.new_empty(operator.weight_shape), -(-n // 32)
        known = None if unaligned else (Q.data_ptr(), *addresses[:2])
        loads = 4 if v.element_size() == 2 else 3
        prepare(cotangent_kernel, (tiles, tiles), (Q, v, z), known, (unread,), compiled, loads)(batch, n, precision)
        return Q
    if isinstance(operator, Conv):
        past = F.pad(z.reshape(-1, *z.shape[-2:]), operator.padding[0]).unfold(2, v.shape[-1], 1)
        taps = past.permute(2, 0, 3, 1).reshape(past.shape[2], -1, n)  # (tap, batch and space, channels)
        Q = v.reshape(-1, *v.shape[-2:]).transpose(0, 1).reshape(n, -1) @ taps
        return Q.permute(1, 2, 0).contiguous().masked_fill_(unread, 0)
    if isinstance(operator, Lagged):
        lags, steps = operator.lags, operator.time_steps(v)
        past = F.pad(z.reshape(-1, steps, n), (0, 0, lags, 0)).unfold(1, steps, 1)  # (batch, lags + 1, channels, time)
        v = v.reshape(-1, n)
        few = max(1, 2**27 // max(1, v.numel()))  # lags whose copies of z fit in memory well
        parts = [
            v.mT @ past[:, max(0, stop - few) : stop].flip(1).permute(1, 0, 3, 2).reshape(-1, *v.shape)
            for stop in range(lags + 1, 0, -few)
        ]
        return (parts[0] if len(parts) == 1 else torch.cat(parts)).masked_fill_(unread, 0)
    v, z = (x if x.ndim == 2 else x.reshape(-1, n) for x in (v, z))
    between, windows = cover(plan, v.element_size() == 2)
    if len(windows) == 1:
        return (v.mT @ z).masked_fill_(unread, 0)
    Q = v.new_zeros(operator.weight_shape)
    for rectangle in between:
        operator.accumulate_cotangent(Q, v, z, rectangle)
    for part in windows:
        Q[part, part].addmm_(v[:, part].mT, z[:, part]).masked_fill_(unread[part, part], 0)
    return Q


@lru_cache(maxsize=64)
@kept
def _unread(
    operator: Operator, plan: Plan, precision: str, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, dict]:
    """Where W is not read, and the kernels that were compiled for it in this precision."""
    return (~operator.mask(plan.connections.expand(plan.partition))).to(device), {}
