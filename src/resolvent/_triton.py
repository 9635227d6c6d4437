"""The sweep on a GPU: the fused kernel for what is sequential, the library's products for the bulk."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.nn import Parameter

from ._activation import FUNCTION, SLOPE_AT, Sigma, for_kernels
from ._kernel import cotangent_kernel, sweep_kernel
from ._operators import Conv, Dense, Lagged, Operator, Product
from ._plan import Plan
from ._stages import Schedule, cover, schedule_of

PROGRAMS = 132  # as many as a large GPU runs at a time
SMALL = 256  # channels and samples up to which Q is one launch
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
    n, axis, positions = plan.partition.total, operator.channel_axis, operator.positions(given)
    if not serves(operator, weight, positions) or (codes is None and mode in (FUNCTION, SLOPE_AT)):
        return None
    inputs, dtype, device = given.shape[axis], weight.dtype, weight.device
    shape = given.shape if inputs == n else operator.full_shape(given)
    if not (
        _readable(weight, dtype, device, operator.weight_shape)
        and _readable(given, dtype, device, given.shape)
        and (bias is None or _readable(bias, dtype, device, (n,)))
        and (z0 is None or z0 is given or _readable(z0, dtype, device, shape))
        and (point is None or _readable(point, dtype, device, shape))
        and (value is None or _readable(value, dtype, device, shape))
        and (inside is None or _readable(inside, torch.bool, device, shape))
    ):
        return None
    if _elsewhere(device):
        with torch.cuda.device(device):
            return sweep(operator, plan, sigma, weight, y0, z0, inside, bias)
    contiguous = torch.contiguous_format
    y = torch.empty_like(given, memory_format=contiguous) if inputs == n else given.new_empty(shape)
    z = torch.empty_like(y)
    if not y.numel():
        return y, z
    batch = y.numel() // (n * positions)
    launches = _launches(
        operator,
        plan,
        codes,
        positions,
        _power_of_2(-(-batch // PROGRAMS)),
        (0 if y0 is None else inputs, bias is not None, z0 is not None, mode, value is not None, inside is not None),
        _precision(dtype),
        dtype,
        device,
    )
    schedule, history = launches.schedule, plan.history
    if schedule.zeros:
        y.zero_()
    if history and not plan.transposed:  # it is given, not computed
        for to, source in ((y, y0), (z, z0)):
            part = to[..., :history, :]
            part.zero_() if source is None else part.copy_(source[..., :history, :])
    launch = _prepare(
        sweep_kernel,
        (-(-batch // launches.samples),),
        (
            y,
            z,
            y if y0 is None else y0.contiguous(),
            z if z0 is None else z0.contiguous(),
            _source_first(operator, weight, plan.transposed, launches.stride),
            y if bias is None else bias.contiguous(),
            y if point is None else point.contiguous(),
            y if value is None else value.contiguous(),
            y if inside is None else inside.contiguous(),
            *launches.tables,
        ),
        launches.compiled,
        launches.warps,
    )
    add_product: Any = None
    for step, fresh in zip(schedule.steps, schedule.fresh, strict=True):
        if isinstance(step, Product):
            add_product = add_product or _product(operator, weight, plan.transposed, shape)
            add_product(y, z, step, fresh)
        else:
            launch(positions, history, step.start, step.stop, batch, *launches.constants)
    return y, z


def _elsewhere(device: torch.device) -> bool:
    """Whether kernels would now be launched on another GPU."""
    return device.type == "cuda" and device.index != torch.cuda.current_device()


def _power_of_2(x: int) -> int:
    """The next one; Triton's own function for it is made for kernels, and slow outside of them."""
    return 1 << (x - 1).bit_length()


def _readable(x: Any, dtype: torch.dtype, device: torch.device, shape: tuple[int, ...]) -> bool:
    """Whether a kernel may read this: no subclass or wrapper, no promise of zeros, stored as it is, and fitting."""
    return (
        (type(x) is Tensor or type(x) is Parameter)
        and x.dtype is dtype
        and x.shape == shape
        and x.device == device
        and not (is_legacy_batchedtensor(x) or x.is_neg() or x._is_zerotensor())
    )


def _prepare(kernel: Any, grid: tuple[int, ...], tensors: tuple[Tensor, ...], compiled: dict, warps: int) -> Any:
    """The kernel on these tensors, as a function of its numbers.

    The kernel's own launcher looks at each argument again; one that was compiled for the like gets addresses alone.
    """
    if not tensors[0].is_cuda:
        return partial(kernel[grid], *tensors)
    addresses = [x.data_ptr() for x in tensors]
    key = (grid, any(address % 16 for address in addresses))
    if key in compiled:
        return partial(compiled[key], *addresses)

    def first(*numbers: Any) -> None:
        compiled[key] = kernel[grid](*tensors, *numbers, num_warps=warps)[(*grid, 1, 1)[:3]]

    return first


def _source_first(operator: Operator, weight: Tensor, transposed: bool, stride: int) -> Tensor:
    """W as [lag, source, to], so that what a program reads lies side by side; of even windows only what is in them."""
    if isinstance(operator, Conv):
        weight = weight.permute(2, 0, 1)
    n = weight.shape[-1]
    if transposed or not stride:
        return weight.contiguous()
    if stride == n:
        return weight.mT.contiguous()
    return weight.reshape(n // stride, stride, n // stride, stride).diagonal(0, 0, 2).permute(2, 1, 0).contiguous()


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


class Launches(NamedTuple):
    """How the kernel sweeps machines of one kind."""

    schedule: Schedule
    stride: int  # between the sources of W as the kernel reads it, or 0 where W* would be as good
    tables: tuple[Tensor, ...]
    constants: tuple  # at compile time
    samples: int  # of one program
    warps: int
    compiled: dict[Any, Any]  # the kernels for these constants, by what else they depend on


@lru_cache(maxsize=1024)
def _launches(
    operator: Operator,
    plan: Plan,
    codes: bytes | None,
    positions: int,
    samples: int,
    given: tuple[int, bool, bool, int, bool, bool],
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
        schedule, layout = schedule_of(plan, codes, half), (n, 1, False, 0)
    span, width = schedule.times, max(16, _power_of_2(schedule.width))
    wide = dtype == torch.float32 and width > 16
    rows = _power_of_2(span * min(samples, max(1, (32 if wide else 16) // span)))
    dot = rows > 2 or span > 1  # one or two samples are cheaper, one by one, as sums of vectors than as tiles of 16
    rows = max(rows, 16) if dot else 1
    depth = 32 if dot and dtype == torch.float32 else 64 if dot else 8192 // (rows * width)
    depth = min(depth, 256)
    used = 0
    for code in codes:
        used |= 1 << code
    added = any(isinstance(step, Product) for step in schedule.steps)
    inputs, has_bias, has_z0, mode, known, inside = given
    # a sum of vectors may as well go along the sources of W, which saves its copy
    stride = schedule.stride if dot or schedule.stride < n else 0
    strides = (stride or n, 1) if stride or plan.transposed else (1, n)
    constants = (
        n,
        *strides,
        schedule.unit,
        *layout,
        schedule.chunked,
        plan.connections.time_block,
        plan.transposed,
        inputs,
        has_bias,
        added,
        has_z0,
    )
    constants += (mode, used, known, inside, span, rows, width, depth, schedule.grouped, dot, precision)
    # where each channel's block ends or, for the dual, begins, behind a border of four
    edges = [b.start if plan.transposed else b.stop for b in plan.partition.blocks for _ in range(b.start, b.stop)]
    tables = (schedule.stages, schedule.sources, [0, 0, 0, 0, *edges, n + 1, n + 1])
    stages, sources, ends = (torch.tensor(table, dtype=torch.int32, device=device) for table in tables)
    tables = (stages, sources, ends[4:])  # still aligned
    warps = 8 if schedule.grouped or (wide and dot and not isinstance(operator, Conv)) else 4
    return Launches(schedule, stride, tables, constants, rows // span, warps, {})


def _precision(dtype: torch.dtype) -> str:
    """Of products, as Triton names it."""
    backends: Any = torch.backends
    asked = dtype == torch.float32 and "tf32" in (backends.cuda.matmul.fp32_precision, backends.fp32_precision)
    return "tf32" if asked else "ieee"


def cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor, weight: Tensor | None = None) -> Tensor | None:
    """Q by few large products: each window, or each lag, as a whole, and then without what is not read.

    None where v and z are not as they must be, to fit the weight if it is given.
    """
    n, axis, like = plan.partition.total, operator.channel_axis, v if weight is None else weight
    dtype, device = like.dtype, like.device
    if not serves(operator, v, operator.positions(v)) or v.shape[axis] != n:
        return None
    if not _readable(v, dtype, device, v.shape) or not _readable(z, dtype, device, v.shape):
        return None
    if not v.numel():
        return v.new_zeros(operator.weight_shape)
    if _elsewhere(device):
        with torch.cuda.device(device):
            return cotangent(operator, plan, v, z, weight)
    precision = _precision(dtype)
    unread, compiled = _unread(operator, plan, precision, dtype, device)
    if isinstance(operator, Dense) and n <= SMALL and v.numel() <= SMALL * n:
        Q = v.new_empty(operator.weight_shape)
        tensors = (Q, v.contiguous(), z.contiguous(), unread)
        _prepare(cotangent_kernel, (-(-n // 32), -(-n // 32)), tensors, compiled, 4)(
            v.numel() // n, n, _precision(dtype)
        )
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
    between, windows = cover(plan)
    if len(windows) == 1:
        return (v.mT @ z).masked_fill_(unread, 0)
    Q = v.new_zeros(operator.weight_shape)
    for rectangle in between:
        operator.accumulate_cotangent(Q, v, z, rectangle)
    for part in windows:
        Q[part, part].addmm_(v[:, part].mT, z[:, part]).masked_fill_(unread[part, part], 0)
    return Q


@lru_cache(maxsize=64)
def _unread(
    operator: Operator, plan: Plan, precision: str, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, dict]:
    """Where W is not read, and the kernels that were compiled for it in this precision."""
    return ~operator.mask(plan.connections.expand(plan.partition)).to(device), {}
