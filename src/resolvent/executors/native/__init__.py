"""The sweep in one native call: the plan as a program of integers for the extension built from `native.cpp`.

The extension is optional: where it was not built, the processor lacks what it was built for, or PyTorch does not show
its tensors through DLPack, the sweep runs step by step in PyTorch.
"""

from array import array
from functools import lru_cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, get_num_threads
from torch._C import _get_tracing_state
from torch.nn import Parameter

from ...structure.activation import FUNCTION, SLOPE_AT, Sigma, for_kernels
from ...structure.convolution import Conv
from ...structure.lagged import Lagged
from ...structure.operator import Operator, Product
from ...sweep.plan import Activate, Plan

PLAIN = (Tensor, Parameter)


def _extension() -> Any:
    for name in ("_v4", "_v3", "_v1"):
        try:
            return import_module(f".{name}", __name__)
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
    source: Tensor | None = None,
) -> Any:
    """(y, z) and, of a dual machine, the cotangent of W with this source; or None where a tensor is not as needed."""
    like: Any = z0 if y0 is None else y0
    program = _program_for(operator, plan, like)
    if program is None:
        return None
    mode, codes, point, value = for_kernels(sigma)
    if codes is None and mode in (FUNCTION, SLOPE_AT):
        return None
    tensors = (weight, bias, y0, z0, point, value, inside, source)
    done = extension.sweep(program, get_num_threads(), mode, codes, *tensors)
    if done is None and _may_be_copied(tensors):
        done = extension.sweep(program, get_num_threads(), mode, codes, *map(_contiguous, tensors))
    return done


def cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor, weight: Tensor | None = None) -> Tensor | None:
    """Q, or None where v and z are not as they must be, to fit the weight if it is given."""
    program = _program_for(operator, plan, v)
    if program is None:
        return None
    done = extension.cotangent(program, get_num_threads(), weight, v, z)
    if done is None and _may_be_copied((v, z)):
        done = extension.cotangent(program, get_num_threads(), weight, *map(_contiguous, (v, z)))
    return done


def addresses(operator: Operator, plan: Plan, tensors: tuple[Tensor | None, ...]) -> tuple[int, ...] | None:
    """Of weight, bias, y0, z0, point, value and inside, 0 for None; or None where one is not as a kernel needs it.

    Before them: how many samples there are, how many channels y0 has or else z0, and whether an address is not aligned.
    """
    like: Any = tensors[3] if tensors[2] is None else tensors[2]
    program = _program_for(operator, plan, like)
    return None if program is None else extension.addresses(program, *tensors)


def _may_be_copied(tensors: tuple) -> bool:
    return all(x is None or (type(x) in PLAIN and x.layout is torch.strided) for x in tensors)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _program_for(operator: Operator, plan: Plan, like: Tensor) -> bytes | None:
    """The program for points like this one, or None where it is not for the extension."""
    # what a tracer is to record, it must see step by step
    if extension is None or type(like) not in PLAIN or _get_tracing_state() is not None:
        return None
    axis = operator.channel_axis
    return _program(operator, plan, like.shape[axis + 1 :] if axis < -1 else None)


@lru_cache(maxsize=256)
def _program(operator: Operator, plan: Plan, space: torch.Size | None) -> bytes:
    """Header, steps and rectangles, as the structures of those names in `native.cpp`."""
    channels, times, lags = operator.weight_shape[operator.weight_axes[0]], 1, 1
    kernel, extent, before = (1, 1, 1), (1, 1, 1), (0, 0, 0)
    if isinstance(operator, Lagged):
        stops = (step.region.times.stop for step in plan.steps if isinstance(step, Activate))
        times = max(stops, default=plan.history)
        lags = operator.lags + 1
    elif isinstance(operator, Conv):
        ones = (1,) * (3 - len(operator.kernel))
        kernel, extent = (*ones, *operator.kernel), (*ones, *(space or ()))
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
    area = kernel[0] * kernel[1] * kernel[2] * extent[0] * extent[1] * extent[2]
    header = [int(isinstance(operator, Conv)), len(operator.weight_shape), int(plan.transposed), channels, times, lags]
    rectangles = [end for r in plan.rectangles for part in r for end in _ends(part)]
    header += [*kernel, *extent, *before, work * area, len(plan.steps), len(plan.rectangles)]
    return array("q", header + steps + rectangles).tobytes()


def _ends(part: range) -> tuple[int, int]:
    return part.start, part.stop
