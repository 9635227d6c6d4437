"""The sweep on a GPU: the fused kernel for what is sequential, the library's products for the bulk."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ._activation import Sigma, for_kernels
from ._kernel import sweep_kernel
from ._operators import Conv, Lagged, Operator, Product
from ._plan import Plan
from ._stages import cover, schedule_of

PROGRAMS = 132  # as many as a large GPU runs at a time


@lru_cache(maxsize=256)
def _tables(plan: Plan, codes: bytes, half: bool, device: torch.device) -> tuple[Tensor, ...]:
    """Stages, sources, and where each channel's block ends or, for the dual, begins; behind a border of four."""
    schedule = schedule_of(plan, codes, half)
    edges = [b.start if plan.transposed else b.stop for b in plan.partition.blocks for _ in range(b.start, b.stop)]
    tables = (schedule.stages, schedule.sources, [0, 0, 0, 0, *edges, *(plan.partition.total + 1,) * 2])
    stages, sources, ends = (torch.tensor(table, dtype=torch.int32, device=device) for table in tables)
    return stages, sources, ends[4:]  # still aligned


def serves(operator: Operator, x: Tensor) -> bool:
    """Whether the kernels sweep machines with this operator, on the device and in the precision of x."""
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16) and not isinstance(operator, Conv)


def sweep(
    operator: Operator,
    plan: Plan,
    sigma: Sigma,
    weight: Tensor,
    y0: Tensor | None,
    z0: Tensor | None,
    inside: Tensor | None,
) -> tuple[Tensor, Tensor]:
    mode, codes, point, value = for_kernels(sigma)
    codes = bytes(len(plan.partition)) if codes is None else codes
    given: Any = z0 if y0 is None else y0
    shape, n, times = given.shape, plan.partition.total, operator.time_steps(given)
    half = given.dtype.itemsize == 2
    schedule = schedule_of(plan, codes, half)
    if len(schedule.steps) == 1 and not plan.history:  # every entry is written, once
        y0, z0 = None if y0 is None else y0.contiguous(), None if z0 is None else z0.contiguous()
        given = given.contiguous()
        y, z = torch.empty_like(given), torch.empty_like(given)
    else:
        y = given.new_zeros(shape) if y0 is None else y0.clone(memory_format=torch.contiguous_format)
        z = torch.empty_like(y) if z0 is None else z0.clone(memory_format=torch.contiguous_format)
        y0, z0 = y, None if z0 is None else z
    batch = given.numel() // (n * times) if given.numel() else 0
    if not batch:
        return y, z
    constants, options = _constants(
        plan,
        codes,
        min(triton.next_power_of_2(triton.cdiv(batch, PROGRAMS)), 16 if half else 32),
        (y0 is not None, z0 is not None, mode),
        value is not None,
        inside is not None,
        "tf32" if given.dtype == torch.float32 and _allows_tf32() else "ieee",
        given.dtype,
    )
    stages, sources, ends = _tables(plan, codes, half, weight.device)
    pointers = (
        y,
        z,
        y if y0 is None else y0,
        z if z0 is None else z0,
        _source_first(weight, plan.transposed, schedule.stride),
        y if point is None else point,
        y if value is None else value,
        y if inside is None else inside.contiguous(),
        stages,
        sources,
        ends,
    )
    launch = _launcher(triton.cdiv(batch, options.samples), pointers, options)
    add_product = None
    flat = (-1, times, n) if operator.event_ndim == 2 else (-1, n)
    for step in schedule.steps:
        if isinstance(step, Product):
            add_product = add_product or operator.product(weight, plan.transposed)
            add_product(y.view(flat), z.view(flat), step)
        else:
            launch(*pointers, times, plan.history, step.start, step.stop, batch, *constants)
    return y, z


def _source_first(weight: Tensor, transposed: bool, stride: int) -> Tensor:
    """W as [lag, source, to], so that what a program reads lies side by side; of even windows only what is in them."""
    n = weight.shape[-1]
    if transposed or stride == n:
        return (weight if transposed else weight.mT).contiguous()
    return weight.reshape(n // stride, stride, n // stride, stride).diagonal(0, 0, 2).permute(2, 1, 0).contiguous()


class Options(NamedTuple):
    samples: int  # of one program
    warps: int
    compiled: dict[Any, Any]  # the kernels for these constants, by what else they depend on


@lru_cache(maxsize=1024)
def _constants(
    plan: Plan,
    codes: bytes,
    samples: int,
    given: tuple[bool, bool, int],
    known: bool,
    inside: bool,
    precision: str,
    dtype: torch.dtype,
) -> tuple[tuple, Options]:
    """The compile-time constants of the kernel for one machine and about so many samples for each program."""
    schedule = schedule_of(plan, codes, dtype.itemsize == 2)
    span = schedule.times
    rows = triton.next_power_of_2(span * samples)
    dot = rows > 4  # a few rows are cheaper as sums of vectors than as a product of tiles, which needs 16
    rows = max(rows, 16) if dot else rows
    width = max(16, min(64, triton.next_power_of_2(schedule.width)))
    depth = 32 if dot and dtype == torch.float32 else 64 if dot else 8192 // (rows * width)
    depth = min(depth, 256)
    used = 0
    for code in codes:
        used |= 1 << code
    has_y0, has_z0, mode = given
    constants = (
        plan.partition.total,
        schedule.stride,
        schedule.unit,
        plan.transposed,
        has_y0,
        has_z0,
        mode,
        used,
        known,
        inside,
        span,
        rows,
        width,
    )
    return (*constants, depth, schedule.grouped, dot, precision), Options(
        rows // span, 4 if schedule.grouped else 8, {}
    )


def _launcher(programs: int, pointers: tuple[Tensor, ...], options: Options) -> Callable[..., Any]:
    """The kernel's own launcher looks at each argument again; a kernel that was compiled for the like need not."""
    y = pointers[0]
    key = (y.dtype, y.device, not any(x.data_ptr() % 16 for x in pointers))
    kernel: Any = sweep_kernel[(programs,)]
    if not y.is_cuda:
        return kernel
    if key in options.compiled:
        return options.compiled[key][(programs, 1, 1)]

    def first(*arguments):
        options.compiled[key] = kernel(*arguments, num_warps=options.warps)

    return first


def _allows_tf32() -> bool:
    backends: Any = torch.backends
    return backends.cuda.matmul.fp32_precision == "tf32" or backends.fp32_precision == "tf32"


def cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor) -> Tensor:
    """Q by few large products: each window, or each lag, as a whole, and then without what is not read."""
    unread = _unread(operator, plan, v.device)
    n = plan.partition.total
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
    v, z = v.reshape(-1, n), z.reshape(-1, n)
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
def _unread(operator: Operator, plan: Plan, device: torch.device) -> Tensor:
    return ~operator.mask(plan.connections.expand(plan.partition)).to(device)
