"""The sweep on a GPU: the fused kernel for what is sequential, the library's products for the bulk."""

from typing import Any

import torch
from torch import Tensor

from ...pytorch import as_stored, without_autocast
from ...structure.operator import CONVOLUTION
from ...structure.sigma import FUNCTION, SLOPE_AT, Sigma
from ...sweep.cut import form_of
from ...sweep.stages import Extent
from ...sweep.system import System
from .kernel import sweep_kernel
from .launch import on_gpu_of, power_of_2, prepare, product_precision, readable, reads, whole
from .launches import Given, Launches, launches
from .products import adder, cotangent

__all__ = ["cotangent", "serves", "sweep"]

PROGRAMS = 132  # as many as a large GPU runs at a time


def serves(system: System, dtype: torch.dtype, positions: int) -> bool:
    return system.codes is not None and reads(system, dtype, positions)


def sweep(system: System, sigma: Sigma, weight: Any, bias: Any, y0: Any, z0: Any) -> tuple[Tensor, Tensor] | None:
    """(y, z), or None where a tensor is not as it must be."""
    if system.packed:
        if weight.shape != system.weight_shape or not as_stored(weight):
            return None
        weight, system = whole(system, weight.detach()), system.whole
    mode, point, value, inside, history, numbers = sigma
    if numbers.order or (system.codes is None and mode in (FUNCTION, SLOPE_AT)):
        return None
    channels = system.partition.ends[-1:] if system.transposed else system.partition.ends
    read = readable(system, (weight, bias, y0, z0, point, value, inside), channels)
    if read is None:
        return None
    with on_gpu_of(weight), without_autocast(weight):
        return _run(system, mode, history, *read)


def _run(system: System, mode: int, history: int, tensors: tuple, facts: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    weight, bias, y0, z0, point, value, inside = tensors
    batch, inputs, unaligned, _, *addresses = facts
    like = z0 if y0 is None else y0
    if inputs == system.partition.total:
        y = torch.empty_like(like, memory_format=torch.contiguous_format)
    else:
        y = weight.new_empty(system.operator.full_shape(like))
    z = torch.empty_like(y)
    if not y.numel():
        return y, z
    if weight.requires_grad:  # autograd records the sweep as a whole
        weight = weight.detach()
    has = bias is not None, z0 is not None, value is not None, inside is not None
    given, samples = Given(0 if y0 is None else inputs, mode, *has), power_of_2(-(-batch // PROGRAMS))
    precision, dtype, device = product_precision(weight.dtype), weight.dtype, weight.device
    made = launches(system, _extent(system, y, history), samples, given, precision, dtype, device)
    if made.schedule.zeros:
        y.zero_()
    if history and not system.transposed:  # it is given, not computed
        for to, source in ((y, y0), (z, z0)):
            part = to[..., :history, :]
            part.zero_() if source is None else part.copy_(source[..., :history, :])
    W = _source_first(system, weight, made)
    grid, read = (-(-batch // made.samples),), (y, z, W, bias, y0, z0, point, value, inside)
    known = None if unaligned else (y.data_ptr(), z.data_ptr(), W.data_ptr(), *addresses)
    launch = prepare(sweep_kernel, grid, read, known, made.tables, made.compiled, made.loads)
    positions, add = system.operator.positions(y), None
    for step, written in made.schedule.steps:
        if isinstance(step, range):
            launch(positions, history, step.start, step.stop, batch, *made.constants)
        else:
            add = add or adder(system, weight, y, z)
            add(step, written)
    return y, z


def _extent(system: System, x: Tensor, history: int) -> Extent:
    positions = system.operator.positions(x)
    return Extent(space=positions) if form_of(system).kind == CONVOLUTION else Extent(positions, history)


def _source_first(system: System, weight: Tensor, made: Launches) -> Tensor:
    """W as [lag, source, to], so that what a program reads lies side by side; of even windows only what is in them."""
    if form_of(system).kind == CONVOLUTION:
        weight = weight.permute(2, 0, 1)
    n, stride = weight.shape[-1], made.stride
    if made.longest_first is not None:
        return weight.mT.index_select(0, made.longest_first)
    if system.transposed or not stride:
        return weight.contiguous()
    if stride == n:
        return weight.mT.contiguous()
    row, column = weight.stride()[-2:]
    windows = ((n // stride, stride, stride), (stride * (row + column), column, row), weight.storage_offset())
    return weight.as_strided(*windows).contiguous()  # by one view: see `adder`
