"""The one solve: forward pass, tangent machine and dual machine, and their derivatives of every order.

`_Solve` finds (y, z); its cotangents are another `_Solve`, with slopes for σ and W transposed, and its tangents one
more. What remains, the cotangent of W, is bilinear, and its derivatives are again solves with σ = 0.
Dynamo refuses a Function that defines `jvp`, so forward mode stands in subclasses that only eager code meets.
"""

from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ._activation import Activations
from ._operators import Operator, Product
from ._plan import Plan


def solve(
    operator: Operator,
    plan: Plan,
    sigma: Activations | Tensor | None,
    weight: Tensor,
    y0: Tensor | None,
    z0: Tensor | None,
    inside: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The (y, z) with y = W z + y0 and z = σ(y) + z0; with `plan.dual`, W* stands for W.

    σ is a machine's activations, zero where `inside` is not True; a tensor of slopes for σ(y) = slope ⊙ y; or None for
    σ = 0, so that y = W z0 + y0. Either of y0, z0 may be None for zero, not both. The weight may lead with ensemble
    axes, which y0 and z0 then share.
    """
    function = _Solve if torch.compiler.is_compiling() else _SolveForwardMode
    activations, slope = (None, sigma) if isinstance(sigma, Tensor) else (sigma, None)
    return function.apply(operator, plan, activations, inside, slope, weight, y0, z0)


def weight_cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor, ensemble_ndim: int = 0) -> Tensor:
    """Q = v z*, summed over the batch, where the plan reads W, and zero elsewhere."""
    function = _WeightCotangent if torch.compiler.is_compiling() else _WeightCotangentForwardMode
    return function.apply(operator, plan, v, z, ensemble_ndim)


class _Solve(Function):
    @staticmethod
    def forward(operator, plan, activations, inside, slope, weight, y0, z0):
        like = z0 if y0 is None else y0
        ensemble_ndim = weight.ndim - len(operator.weight_shape)

        def flat(x: Any) -> Any:
            return None if x is None else _flatten(x, ensemble_ndim, operator.event_ndim)

        y, z = (
            flat(like.new_zeros(like.shape) if x is None else x.clone(memory_format=torch.contiguous_format))
            for x in (y0, z0)
        )
        inside, slope = flat(inside), flat(slope)
        if ensemble_ndim > 1:
            weight = weight.flatten(0, ensemble_ndim - 1)
        with _without_autocast(weight):
            add_product = operator.product(weight, plan.transposed)
            for step in plan.steps:
                if isinstance(step, Product):
                    add_product(y, z, step)
                    continue
                y_part, z_part = operator.part(y, step.region), operator.part(z, step.region)
                if activations is not None:
                    value = activations.blocks[step.block].function(y_part)
                    z_part.add_(value if inside is None else value.where(operator.part(inside, step.region), 0))
                elif slope is not None:
                    z_part.addcmul_(operator.part(slope, step.region), y_part)
        return y.view(like.shape), z.view(like.shape)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.operator, ctx.plan, ctx.activations, inside, slope, weight, _, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inside, slope, weight, *output)
        ctx.save_for_forward(inside, slope, weight, *output)

    @staticmethod
    def backward(ctx, v0, u0):
        inside, slope, weight, y, z = ctx.saved_tensors
        if v0 is None and u0 is None:
            return (None,) * 8
        u, v = solve(ctx.operator, ctx.plan.dual, _slope(ctx, inside, slope, y), weight, u0, v0)
        _, _, _, _, by_slope, by_weight, by_y0, by_z0 = ctx.needs_input_grad
        Q = None
        if by_weight:
            plan, to, source = (ctx.plan.dual, z, v) if ctx.plan.transposed else (ctx.plan, v, z)
            Q = weight_cotangent(ctx.operator, plan, to, source, weight.ndim - len(ctx.operator.weight_shape))
        return None, None, None, None, u * y if by_slope else None, Q, v if by_y0 else None, u if by_z0 else None

    @staticmethod
    def vmap(info, in_dims, operator, plan, activations, inside, slope, weight, y0, z0):
        # A mapped weight opens an ensemble axis in front; other mapped axes are one batch axis more.
        weight_dim = in_dims[5]
        axis = 0 if weight_dim is not None else weight.ndim - len(operator.weight_shape)
        weight = weight if weight_dim is None else weight.movedim(weight_dim, 0)
        dims = (*in_dims[3:5], *in_dims[6:])
        inside, slope, y0, z0 = (
            _with_axis(x, dim, axis, info.batch_size) for x, dim in zip((inside, slope, y0, z0), dims, strict=True)
        )
        sigma = slope if activations is None else activations
        return solve(operator, plan, sigma, weight, y0, z0, inside), (axis, axis)


class _SolveForwardMode(_Solve):
    @staticmethod
    def jvp(ctx, _operator, _plan, _activations, _inside, dslope, dweight, dy0, dz0):
        inside, slope, weight, y, z = ctx.saved_tensors
        if dweight is not None:
            dy0, _ = solve(ctx.operator, ctx.plan, None, dweight, dy0, z)
        if dslope is not None:
            dz0 = dslope * y if dz0 is None else dz0 + dslope * y
        return solve(ctx.operator, ctx.plan, _slope(ctx, inside, slope, y), weight, dy0, dz0)


class _WeightCotangent(Function):
    @staticmethod
    def forward(operator, plan, v, z, ensemble_ndim):
        ensemble = v.shape[:ensemble_ndim]
        Q = v.new_zeros((*((prod(ensemble),) if ensemble else ()), *operator.weight_shape))
        v, z = (_flatten(x, ensemble_ndim, operator.event_ndim) for x in (v, z))
        with _without_autocast(v):
            for rectangle in plan.rectangles:
                operator.accumulate_cotangent(Q, v, z, rectangle)
        return Q.view(*ensemble, *operator.weight_shape)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.operator, ctx.plan, v, z, ctx.ensemble_ndim = inputs
        ctx.save_for_backward(v, z)
        ctx.save_for_forward(v, z)

    @staticmethod
    def backward(ctx, dweight):
        v, z = ctx.saved_tensors
        dv, _ = solve(ctx.operator, ctx.plan, None, dweight, None, z)
        dz, _ = solve(ctx.operator, ctx.plan.dual, None, dweight, None, v)
        return None, None, dv, dz, None

    @staticmethod
    def vmap(info, in_dims, operator, plan, v, z, ensemble_ndim):
        v, z = (_with_axis(x, dim, 0, info.batch_size) for x, dim in ((v, in_dims[2]), (z, in_dims[3])))
        return weight_cotangent(operator, plan, v, z, ensemble_ndim + 1), 0


class _WeightCotangentForwardMode(_WeightCotangent):
    @staticmethod
    def jvp(ctx, _operator, _plan, dv, dz, _ensemble_ndim):
        v, z = ctx.saved_tensors
        product_rule = ((dv, z), (v, dz))
        return sum(weight_cotangent(ctx.operator, ctx.plan, *factors, ctx.ensemble_ndim) for factors in product_rule)


def _slope(ctx, inside: Tensor | None, slope: Tensor | None, y: Tensor) -> Tensor | None:
    if ctx.activations is None:
        return slope
    at_y = ctx.activations.slope(y)
    return at_y if inside is None else at_y.where(inside, 0)


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


def _with_axis(x: Tensor | None, dim: int | None, axis: int, size: int) -> Tensor | None:
    """x with its mapped axis `dim` at `axis`, or repeated along a new one where it was not mapped."""
    if x is None:
        return None
    x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.movedim(0, axis)
