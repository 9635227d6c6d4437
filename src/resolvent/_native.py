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
    return extension is not None and x.dtype in (torch.float64, torch.float32)


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
    """(y, z), or None where a tensor is not as it must be. Besides what others do, y0 may be short, and have a bias."""
    mode, codes, point, value = for_kernels(sigma)
    like: Any = z0 if y0 is None else y0
    return _call("sweep", operator, plan, like, (mode, codes), (weight, bias, y0, z0, point, value, inside))


def cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor) -> Tensor | None:
    return _call("cotangent", operator, plan, v, (), (v, z))


def _call(name: str, operator: Operator, plan: Plan, like: Tensor, options: tuple, tensors: tuple) -> Any:
    if extension is None:
        return None
    function, threads = getattr(extension, name), torch.get_num_threads()
    program = _program_for(operator, plan, like.shape)
    done = function(program, threads, *options, *tensors)
    if done is None and any(x is not None and not x.is_contiguous() for x in tensors):
        done = function(program, threads, *options, *(None if x is None else x.contiguous() for x in tensors))
    return done


@lru_cache(maxsize=1024)
def _program_for(operator: Operator, plan: Plan, shape: torch.Size) -> bytes:
    return _program(operator, plan, shape[-operator.event_ndim :])


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
    header = [int(isinstance(operator, Conv)), len(operator.weight_shape), int(plan.transposed), channels, times, lags]
    rectangles = [end for r in plan.rectangles for part in r for end in _ends(part)]
    header += [*kernel, *space, *before, work * area, len(plan.steps), len(plan.rectangles)]
    return array("q", header + steps + rectangles).tobytes()


def _ends(part: range) -> tuple[int, int]:
    return part.start, part.stop
