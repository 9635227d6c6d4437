"""One sweep over the blocks, without derivatives: step by step in PyTorch, or by a faster executor where one serves."""

from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor

from . import _native
from ._activation import Activations, Slope
from ._operators import Operator, Product
from ._plan import Plan

Sigma = Activations | Slope | Tensor | None


def executor(weight: Tensor, activations: Activations) -> str:
    """Which executor sweeps machines with this weight and σ."""
    return "native" if _native.serves(weight) and activations.codes is not None else "torch"


def sweep(
    operator: Operator,
    plan: Plan,
    sigma: Sigma,
    weight: Tensor,
    y0: Tensor | None,
    z0: Tensor | None,
    inside: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The (y, z) of `solve`."""
    if (
        not torch.compiler.is_compiling()
        and _native.serves(weight, y0, z0)
        and weight.ndim == len(operator.weight_shape)
    ):
        activations = sigma.activations if isinstance(sigma, Slope) else sigma
        if not isinstance(activations, Activations) or activations.codes is not None:
            return _native.sweep(operator, plan, sigma, weight, y0, z0, inside)
    return _step_by_step(operator, plan, sigma, weight, y0, z0, inside)


def cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor, ensemble_ndim: int) -> Tensor:
    """The Q of `weight_cotangent`."""
    if not torch.compiler.is_compiling() and not ensemble_ndim and _native.serves(v, z):
        return _native.cotangent(operator, plan, v, z)
    ensemble = v.shape[:ensemble_ndim]
    Q = v.new_zeros((*((prod(ensemble),) if ensemble else ()), *operator.weight_shape))
    v, z = (_flatten(x, ensemble_ndim, operator.event_ndim) for x in (v, z))
    with _without_autocast(v):
        for rectangle in plan.rectangles:
            operator.accumulate_cotangent(Q, v, z, rectangle)
    return Q.view(*ensemble, *operator.weight_shape)


def _step_by_step(operator, plan, sigma: Sigma, weight, y0, z0, inside) -> tuple[Tensor, Tensor]:
    like = z0 if y0 is None else y0
    ensemble_ndim = weight.ndim - len(operator.weight_shape)

    def flat(x: Any) -> Any:
        return None if x is None else _flatten(x, ensemble_ndim, operator.event_ndim)

    y, z = (
        flat(like.new_zeros(like.shape) if x is None else x.clone(memory_format=torch.contiguous_format))
        for x in (y0, z0)
    )
    inside = flat(inside)
    slope = flat(sigma.tensor() if isinstance(sigma, Slope) else sigma) if isinstance(sigma, Slope | Tensor) else None
    if slope is not None and inside is not None:
        slope = slope.where(inside, 0)
    if ensemble_ndim > 1:
        weight = weight.flatten(0, ensemble_ndim - 1)
    with _without_autocast(weight):
        add_product = operator.product(weight, plan.transposed)
        for step in plan.steps:
            if isinstance(step, Product):
                add_product(y, z, step)
                continue
            y_part, z_part = operator.part(y, step.region), operator.part(z, step.region)
            if slope is not None:
                z_part.addcmul_(operator.part(slope, step.region), y_part)
            elif sigma is not None:
                value = sigma.blocks[step.block].function(y_part)
                z_part.add_(value if inside is None else value.where(operator.part(inside, step.region), 0))
    return y.view(like.shape), z.view(like.shape)


def _without_autocast(x: Tensor) -> AbstractContextManager:
    """Points and weights came in the precision to compute in, also when a backward pass runs under autocast."""
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _flatten(x: Tensor, ensemble_ndim: int, event_ndim: int) -> Tensor:
    """(*ensemble, *batch, *event) as (member, batch, *event), or as (batch, *event) where there is no ensemble."""
    split = x.ndim - event_ndim
    ensemble = (prod(x.shape[:ensemble_ndim]),) if ensemble_ndim else ()
    return x.reshape(*ensemble, prod(x.shape[ensemble_ndim:split]), *x.shape[split:])
