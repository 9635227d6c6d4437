"""Algorithm 1 of the paper, step by step in plain PyTorch: the reference for every executor."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from ..pytorch import is_batched_cotangent, without_autocast
from ..structure.operator import Product
from ..structure.sigma import FUNCTION, NONE, SLOPE_AT, Sigma
from .system import System


def steps(
    system: System, sigma: Sigma, weight: Tensor, bias: Tensor | None, y0: Tensor | None, z0: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The (y, z) with y = W z + y0 + bias and z = σ(y) + z0, block after block.

    y begins as y0 + bias and z as z0. Each step of the plan adds to a part of one of them: a rectangle of W times what
    was solved before or, once all has come to a block, σ of it.
    """
    operator, real = system.operator, sigma.numbers.real
    y, z = begin(system, sigma, bias, y0, z0)
    shape, members, axis = y.shape, weight.ndim - len(system.weight_shape), -2 - operator.event_ndim
    y, z = flat(y, members, -1 - axis - real), flat(z, members, -1 - axis - real)
    if sigma.mode != FUNCTION and is_batched_cotangent(weight):  # they are written to below
        y, z = y + weight.new_zeros(()), z + weight.new_zeros(())
    sigma = sigma if sigma.mode in (NONE, FUNCTION) and sigma.inside is None else _of_rows(system, sigma, members)
    weight = weight.flatten(0, members - 1) if members > 1 else weight
    y_rows, z_rows = (y, z) if real else (y.flatten(axis, axis + 1), z.flatten(axis, axis + 1))  # for W, of more rows
    factors: dict[int, Any] = {}
    with without_autocast(weight):
        for step in system.unrolled(operator.time_steps(y), sigma.history):
            if isinstance(step, Product):
                if step.k not in factors:
                    factors[step.k] = operator.factor(weight, system.rectangles[step.k], system.transposed)
                operator.add_product(y_rows, z_rows, factors[step.k], step, system.transposed)
            elif sigma.mode == FUNCTION and sigma.inside is None and real:
                part = operator.part(y, step.region)
                operator.part(z, step.region).add_(system.activations.blocks[step.block].function(part))
            elif sigma.mode != NONE:
                operator.part(z, step.region).add_(_image(system, sigma, y, step))
    return y.view(shape), z.view(shape)


def begin(
    system: System, sigma: Sigma, bias: Tensor | None, y0: Tensor | None, z0: Tensor | None
) -> tuple[Tensor, Tensor]:
    """New tensors of y0 + bias and z0 on all channels; the bias is a real number."""
    operator, numbers = system.operator, sigma.numbers
    if y0 is None:
        assert z0 is not None  # or it would have been refused
        y0 = z0.new_zeros(operator.full_shape(z0))
    if bias is not None and not numbers.real:
        shape = (1,) * (operator.event_ndim + operator.channel_axis), (1,) * (-1 - operator.channel_axis)
        bias = numbers.embedded(bias.reshape(*shape[0], -1, *shape[1]), -1 - operator.event_ndim)
        y0, bias = operator.extended(y0) + bias, None
    y = operator.extended(y0, bias)
    y = y.clone(memory_format=torch.contiguous_format) if y is y0 else y.contiguous()
    if z0 is None:
        return y, torch.zeros_like(y)
    return y, operator.extended(z0).clone(memory_format=torch.contiguous_format)


def accumulate(system: System, v: Tensor, z: Tensor, members: int) -> Tensor:
    """Q = v z* of the paper, summed over the batch, rectangle after rectangle; zero where W is not read."""
    operator, ensemble = system.operator, v.shape[:members]
    Q = v.new_zeros((*((prod(ensemble),) if ensemble else ()), *system.weight_shape))
    Q = Q + z.new_zeros(()) if is_batched_cotangent(z) else Q
    v, z = (flat(x, members, operator.event_ndim) for x in (v, z))
    with without_autocast(v):
        for rectangle in system.rectangles:
            operator.add_cotangent(operator.entries(Q, rectangle), v, z, rectangle)
    return Q.view(*ensemble, *system.weight_shape)


def flat(x: Tensor, members: int, event_ndim: int) -> Tensor:
    """(*members, *batch, *event) as (member, batch, *event), or as (batch, *event) where there are no members."""
    split = x.ndim - event_ndim
    ensemble = (prod(x.shape[:members]),) if members else ()
    return x.reshape(*ensemble, prod(x.shape[members:split]), *x.shape[split:])


def _of_rows(system: System, sigma: Sigma, members: int) -> Sigma:
    """σ with its tensors as (member, batch, *event), and slopes that are still to be computed.

    Unless σ(point) gives each in one operation with what it multiplies.
    """
    operator, known = system.operator, sigma.numbers.real and all(a.times_slope for a in system.activations.blocks)
    if known and sigma.value is not None:
        sigma = sigma._replace(value=sigma.value.detach())  # the slope's derivatives are by the point it is taken at
    else:
        sigma = sigma.with_slope(system.activations)
    event_ndim = operator.event_ndim + (not sigma.numbers.real)
    tensors = dict(point=sigma.point, value=sigma.value, inside=sigma.inside)
    return sigma._replace(**{n: flat(x, members, event_ndim) for n, x in tensors.items() if x is not None})


def _image(system: System, sigma: Sigma, y: Tensor, step: Any) -> Tensor:
    """σ(y), or what stands for it, in one block."""
    operator, activation, numbers = system.operator, system.activations.blocks[step.block], sigma.numbers
    part = operator.part(y, step.region)
    if sigma.mode == FUNCTION:
        image = numbers.extended(activation, part, -1 - operator.event_ndim)
    elif sigma.mode == SLOPE_AT:
        image = activation.times_slope(part, operator.part(sigma.value, step.region))  # pyright: ignore  # it is known
    else:
        slope = operator.part(sigma.point, step.region)  # pyright: ignore  # there is one
        image = numbers.image(slope, part, -1 - operator.event_ndim, system.transposed)
    return image if sigma.inside is None else image.where(operator.part(sigma.inside, step.region), 0)
