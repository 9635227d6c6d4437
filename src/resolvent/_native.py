"""The sweep in one native call: the plan as a program of integers for the extension built from `native.cpp`.

The extension is optional: where it was not built, or the processor lacks what it was built for, the sweep runs step by
step in PyTorch.
"""

from array import array
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from ._activation import Sigma, for_kernels
from ._operators import Conv, Lagged, Operator, Product
from ._plan import Plan

ITEM_SIZES = {torch.float64: 8, torch.float32: 4}


def _extension() -> Any:
    for name in ("_native_v4", "_native_v3", "_native_v1"):
        try:
            return import_module(f".{name}", __package__)
        except ImportError:
            continue
    return None


extension = _extension()


def serves(operator: Operator, x: Tensor, positions: int) -> bool:
    """Whether machines in the precision of x are swept natively."""
    return extension is not None and x.dtype in ITEM_SIZES


def sweep(
    operator: Operator,
    plan: Plan,
    sigma: Sigma,
    weight: Tensor,
    y0: Tensor | None,
    z0: Tensor | None,
    inside: Tensor | None,
) -> tuple[Tensor, Tensor]:
    weight = weight.contiguous()
    y0 = y0 if y0 is None else y0.contiguous()
    z0 = z0 if z0 is None else z0.contiguous()
    inside = inside if inside is None else inside.contiguous()
    like: Any = z0 if y0 is None else y0
    y, z = torch.empty_like(like), torch.empty_like(like)
    mode, codes, point, value = for_kernels(sigma)
    event = like.shape[-operator.event_ndim :]
    samples = like.numel() // (event.numel() or 1)
    extension.sweep(
        _program(operator, plan, event),
        ITEM_SIZES[like.dtype],
        samples,
        torch.get_num_threads(),
        weight.data_ptr(),
        y.data_ptr(),
        z.data_ptr(),
        0 if y0 is None else y0.data_ptr(),
        0 if z0 is None else z0.data_ptr(),
        mode,
        codes,
        0 if point is None else point.data_ptr(),
        0 if value is None else value.data_ptr(),
        0 if inside is None else inside.data_ptr(),
    )
    return y, z


def cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor) -> Tensor:
    v, z = v.contiguous(), z.contiguous()
    Q = v.new_empty(operator.weight_shape)
    event = v.shape[-operator.event_ndim :]
    samples = v.numel() // (event.numel() or 1)
    program = _program(operator, plan, event)
    extension.cotangent(
        program, ITEM_SIZES[v.dtype], samples, torch.get_num_threads(), v.data_ptr(), z.data_ptr(), Q.data_ptr()
    )
    return Q


@lru_cache(maxsize=256)
def _program(operator: Operator, plan: Plan, event: torch.Size) -> bytes:
    """Header, steps and rectangles, as the structures of those names in `native.cpp`."""
    channels, times, lags = operator.weight_shape[operator.weight_axes[0]], 1, 1
    kernel, space, before = (1, 1, 1), (1, 1, 1), (0, 0, 0)
    if isinstance(operator, Lagged):
        times, lags = event[0], operator.lags + 1
    elif isinstance(operator, Conv):
        ones = (1,) * (3 - len(operator.kernel))
        kernel, space = (*ones, *operator.kernel), (*ones, *event[1:])
        before = (*(0,) * len(ones), *(pair[0] for pair in operator.padding))
    steps, work = [], 0
    for step in plan.steps:
        to = step.to if isinstance(step, Product) else step.region
        row = [int(isinstance(step, Product)), *_ends(to.times), *_ends(to.channels)]
        if isinstance(step, Product):
            source, step_lags = step.source, step.lags
            row += [*_ends(source.times), *_ends(source.channels), *_ends(step_lags)]
            work += len(to.times) * len(to.channels) * len(source.channels) * len(step_lags)
        else:
            row += [0, 0, step.block, 0, 0, 0]
        steps += row
    area = kernel[0] * kernel[1] * kernel[2] * space[0] * space[1] * space[2]
    header = [int(isinstance(operator, Conv)), int(plan.transposed), channels, times, lags, *kernel, *space, *before]
    rectangles = [end for r in plan.rectangles for part in r for end in _ends(part)]
    header += [work * area, len(plan.steps), len(plan.rectangles)]
    return array("q", header + steps + rectangles).tobytes()


def _ends(part: range) -> tuple[int, int]:
    return part.start, part.stop
