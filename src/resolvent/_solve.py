"""The one solve: forward pass, tangent machine and dual machine, and their derivatives of every order.

`_Solve` finds (y, z); its cotangents are another `_Solve`, with slopes for σ and W transposed, and its tangents one
more. What remains, the cotangent of W, is bilinear, and its derivatives are again solves with σ = 0.
Dynamo refuses a Function that defines `jvp`, so forward mode stands in subclasses that only eager code meets.
"""

from math import prod

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
) -> tuple[Tensor, Tensor]:
    """The (y, z) with y = W z + y0 and z = σ(y) + z0; with `plan.dual`, W* stands for W.

    σ is a machine's activations, a tensor of slopes for σ(y) = slope ⊙ y, or None for σ = 0 (then y = W z0 + y0).
    Either of y0, z0 may be None for zero, not both. The weight may lead with ensemble axes, which y0 and z0 then share.
    """
    function = _Solve if torch.compiler.is_compiling() else _SolveForwardMode
    activations, slope = (None, sigma) if isinstance(sigma, Tensor) else (sigma, None)
    return function.apply(operator, plan, activations, slope, weight, y0, z0)


def weight_cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor, ensemble_ndim: int = 0) -> Tensor:
    """Q = v z*, summed over the batch, where the plan reads W, and zero elsewhere."""
    function = _WeightCotangent if torch.compiler.is_compiling() else _WeightCotangentForwardMode
    return function.apply(operator, plan, v, z, ensemble_ndim)


class _Solve(Function):
    @staticmethod
    def forward(operator, plan, activations, slope, weight, y0, z0):
        like = z0 if y0 is None else y0
        ensemble_ndim = weight.ndim - len(operator.weight_shape)
        y, z = (
            _flatten(
                like.new_zeros(like.shape) if x is None else x.clone(memory_format=torch.contiguous_format),
                ensemble_ndim,
                operator.event_ndim,
            )
            for x in (y0, z0)
        )
        if slope is not None:
            slope = _flatten(slope, ensemble_ndim, operator.event_ndim)
        if ensemble_ndim > 1:
            weight = weight.flatten(0, ensemble_ndim - 1)
        add_product = operator.product(weight, plan.transposed)
        for step in plan.steps:
            if isinstance(step, Product):
                add_product(y, z, step)
                continue
            y_part, z_part = operator.part(y, step.region), operator.part(z, step.region)
            if activations is not None:
                z_part.add_(activations.blocks[step.block].function(y_part))
            elif slope is not None:
                z_part.addcmul_(operator.part(slope, step.region), y_part)
        return y.view(like.shape), z.view(like.shape)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.operator, ctx.plan, ctx.activations, slope, weight, _, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(slope, weight, *output)
        ctx.save_for_forward(slope, weight, *output)

    @staticmethod
    def backward(ctx, v0, u0):
        slope, weight, y, z = ctx.saved_tensors
        if v0 is None and u0 is None:
            return (None,) * 7
        u, v = solve(ctx.operator, ctx.plan.dual, _slope(ctx, slope, y), weight, u0, v0)
        slope_cotangent = u * y if ctx.needs_input_grad[3] else None
        Q = None
        if ctx.needs_input_grad[4]:
            plan, to, source = (ctx.plan.dual, z, v) if ctx.plan.transposed else (ctx.plan, v, z)
            Q = weight_cotangent(ctx.operator, plan, to, source, weight.ndim - len(ctx.operator.weight_shape))
        return (
            None,
            None,
            None,
            slope_cotangent,
            Q,
            v if ctx.needs_input_grad[5] else None,
            u if ctx.needs_input_grad[6] else None,
        )

    @staticmethod
    def vmap(info, in_dims, operator, plan, activations, slope, weight, y0, z0):
        # A mapped weight opens an ensemble axis in front; other mapped axes are one batch axis more.
        axis = 0 if in_dims[4] is not None else weight.ndim - len(operator.weight_shape)
        weight = weight if in_dims[4] is None else weight.movedim(in_dims[4], 0)
        slope, y0, z0 = (
            _with_axis(x, dim, axis, info.batch_size)
            for x, dim in zip((slope, y0, z0), (in_dims[3], *in_dims[5:]), strict=True)
        )
        sigma = slope if activations is None else activations
        return solve(operator, plan, sigma, weight, y0, z0), (axis, axis)


class _SolveForwardMode(_Solve):
    @staticmethod
    def jvp(ctx, _operator, _plan, _activations, dslope, dweight, dy0, dz0):
        slope, weight, y, z = ctx.saved_tensors
        if dweight is not None:
            dy0, _ = solve(ctx.operator, ctx.plan, None, dweight, dy0, z)
        if dslope is not None:
            dz0 = dslope * y if dz0 is None else dz0 + dslope * y
        return solve(ctx.operator, ctx.plan, _slope(ctx, slope, y), weight, dy0, dz0)


class _WeightCotangent(Function):
    @staticmethod
    def forward(operator, plan, v, z, ensemble_ndim):
        ensemble = v.shape[:ensemble_ndim]
        Q = v.new_zeros((*((prod(ensemble),) if ensemble else ()), *operator.weight_shape))
        v, z = (_flatten(x, ensemble_ndim, operator.event_ndim) for x in (v, z))
        for rectangle in plan.rectangles:
            operator.accumulate_cotangent(Q, v, z, rectangle, plan.history)
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


def _slope(ctx, slope: Tensor | None, y: Tensor) -> Tensor | None:
    return slope if ctx.activations is None else ctx.activations.slope(y)


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
