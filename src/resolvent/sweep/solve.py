"""The one solve: forward pass, tangent machine and dual machine, and their derivatives of every order.

`_Solve` finds (y, z); its cotangents are another `_Solve`, with slopes for σ and W transposed, and its tangents one
more. What remains, the cotangent of W, is bilinear, and its derivatives are again solves with σ = 0.
Dynamo refuses a Function that defines `jvp`, so forward mode stands in subclasses that only eager code meets.
"""

from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active, _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import TransformType, get_interpreter_stack, is_legacy_batchedtensor
from torch._functorch.utils import unwrap_dead_wrappers
from torch.autograd import Function, forward_ad

from ..executors import native as _native
from ..structure.activation import Sigma, Slope
from ..structure.operator import Operator
from .plan import Plan
from .sweep import cotangent, fast, sweep


def solve(
    operator: Operator,
    plan: Plan,
    sigma: Sigma,
    weight: Tensor,
    y0: Tensor | None,
    z0: Tensor | None,
    inside: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The (y, z) with y = W z + y0 + bias and z = σ(y) + z0; with `plan.dual`, W* stands for W.

    σ is a machine's activations; slopes, as a tensor or still to be computed, for σ(y) = slope ⊙ y; or None for σ = 0,
    so that y = W z0 + y0. It is zero where `inside` is not True. Either of y0, z0 may be None for zero, not both. Of y0
    the first channels are enough, and only with y0 may there be a bias. The weight may lead with ensemble axes, which
    y0 and z0 then share.
    """
    lazy = isinstance(sigma, Slope)
    slope = sigma if isinstance(sigma, Tensor) else None
    if not _differentiated(sigma.y if lazy else slope, weight, y0, z0, bias):
        return sweep(operator, plan, sigma, weight, y0, z0, inside, bias)
    slope = sigma.slope if lazy else slope
    activations = sigma if slope is None else None
    if slope is not None and inside is not None:
        slope, inside = slope.where(inside, 0), None
    return _apply(_Solve, _SolveForwardMode, operator, plan, activations, None, inside, slope, weight, bias, y0, z0)


def at_once(
    operator: Operator,
    plan: Plan,
    sigma: Sigma,
    weight: Tensor,
    y0: Tensor,
    z0: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """The solve by a fast executor that checks all it is given, and then its place in autograd's graph.

    None where a tensor is not in order, or anything transforms, casts or watches: the long way then knows more.
    """
    derivative = isinstance(sigma, Slope)
    recorded = _recorded(weight, y0, z0, bias, sigma.y if derivative else None)
    if _transformed() or (recorded and derivative):
        return None
    executor = fast(weight)
    done = None if executor is None else executor.sweep(operator, plan, sigma, weight, y0, z0, None, bias)
    if done is None or not recorded:
        return done
    return _apply_solve(operator, plan, sigma, done, None, None, weight, bias, y0, z0)


def weight_cotangent_at_once(operator: Operator, plan: Plan, weight: Tensor, v: Tensor, z: Tensor) -> Tensor | None:
    """The Q of `weight_cotangent` by a fast executor that checks whether v and z fit each other and the weight.

    None where they do not, or autograd records, or as above.
    """
    executor = None if _transformed() or _recorded(v, z) else fast(weight)
    return None if executor is None else executor.cotangent(operator, plan, v, z, weight)


def weight_cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor, ensemble_ndim: int = 0) -> Tensor:
    """Q = v z*, summed over the batch, where the plan reads W, and zero elsewhere."""
    if not _differentiated(v, z):
        return cotangent(operator, plan, v, z, ensemble_ndim)
    return _apply(_WeightCotangent, _WeightCotangentForwardMode, operator, plan, v, z, ensemble_ndim)


def _differentiated(*factors: Tensor | None) -> bool:
    """Whether anything would see the derivatives of an operation on these."""
    return (
        torch.compiler.is_compiling()
        or forward_ad._current_level >= 0
        or _are_functorch_transforms_active()
        or _recorded(*factors)
    )


def _recorded(*factors: Tensor | None) -> bool:
    """Whether autograd records an operation on these."""
    if is_grad_enabled():
        for x in factors:
            if getattr(x, "requires_grad", False):  # what is no tensor is refused later
                return True
    return False


def _transformed() -> bool:
    """Whether operations mean more than they say, in eager code."""
    return (
        forward_ad._current_level >= 0
        or _are_functorch_transforms_active()
        or _is_any_autocast_enabled()
        or _len_torch_dispatch_stack() > 0
    )


def _apply(function: type[Function], forward_mode: type[Function], *args: Any) -> Any:
    if torch.compiler.is_compiling():
        if forward_ad._current_level >= 0:
            return _forward_mode(forward_mode, *args)
        if _are_functorch_transforms_active():
            # Of tensors that go in as they are, Dynamo would differentiate the forward pass, which works in place.
            args = tuple(x.view_as(x) if isinstance(x, Tensor) else x for x in args)
        return function.apply(*args)
    if _are_functorch_transforms_active():
        return _forward_mode(forward_mode, *args)
    base: Any = super(Function, forward_mode if forward_ad._current_level >= 0 else function)
    return base.apply(*unwrap_dead_wrappers(args))


@torch._disable_dynamo  # pyright: ignore  # private, but torch.compiler.disable would import the compiler
def _forward_mode(function: type[Function], *args: Any) -> Any:
    if sum(level.key() == TransformType.Jvp for level in get_interpreter_stack() or ()) > 1:
        raise NotImplementedError(
            "forward mode inside of forward mode would lose derivatives, since PyTorch drops those of a Function "
            "there: use it once (jvp, jacfwd or hessian), and jacrev, vjp or grad for the others"
        )
    return function.apply(*args)


class _Solve(Function):
    @staticmethod
    def forward(operator, plan, activations, done, inside, slope, weight, bias, y0, z0):
        return done or sweep(operator, plan, activations or slope, weight, y0, z0, inside, bias)

    @staticmethod
    def setup_context(ctx, inputs, output):
        operator, plan, activations, _, inside, slope, weight, _, y0, z0 = inputs
        channels = None if y0 is None else y0.shape[operator.channel_axis]
        ctx.machine = operator, plan, activations, z0 is None, channels
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inside, slope, weight, *output)

    @staticmethod
    def backward(ctx, v0, u0):
        if v0 is None and u0 is None:
            return (None,) * 10
        _refuse_to_lose(v0, u0)
        (operator, plan, *_, channels), (inside, slope, weight, y, z) = ctx.machine, ctx.saved_tensors
        *_, by_slope, by_weight, by_bias, by_y0, by_z0 = ctx.needs_input_grad
        axis, sigma, done = operator.channel_axis, _slope(ctx, slope, y, z), None
        Q = of_bias = of_y0 = None
        native = by_weight and not plan.transposed and weight.is_cpu and not torch.compiler.is_compiling()
        if native and not is_grad_enabled() and not _transformed():
            done = _native.sweep(operator, plan.dual, sigma, weight, u0, v0, inside, None, z)
        if done is not None:
            u, v, Q = done
        else:
            u, v = solve(operator, plan.dual, sigma, weight, u0, v0, inside)
            if by_weight:
                plan, to, source = (plan.dual, z, v) if plan.transposed else (plan, v, z)
                Q = weight_cotangent(operator, plan, to, source, weight.ndim - len(operator.weight_shape))
        if by_bias:
            others = [i for i in range(-v.ndim, 0) if i != axis]
            of_bias = v.sum(others) if others else v
        if by_y0:
            of_y0 = v if channels == v.shape[axis] else v.narrow(axis, 0, channels)
        return *(None,) * 5, u * y if by_slope else None, Q, of_bias, of_y0, u if by_z0 else None

    @staticmethod
    def vmap(info, in_dims, operator, plan, activations, done, inside, slope, weight, bias, y0, z0):
        # A mapped weight opens an ensemble axis in front; other mapped axes are one batch axis more.
        *_, inside_dim, slope_dim, weight_dim, bias_dim, y0_dim, z0_dim = in_dims
        axis = 0 if weight_dim is not None else weight.ndim - len(operator.weight_shape)
        weight = weight if weight_dim is None else weight.movedim(weight_dim, 0)
        mapped = ((inside, inside_dim), (slope, slope_dim), (y0, y0_dim), (z0, z0_dim))
        inside, slope, y0, z0 = (_with_axis(x, dim, axis, info.batch_size) for x, dim in mapped)
        if bias_dim is not None:
            y0 = operator.extended(y0)
            ones = (1,) * (y0.ndim + operator.channel_axis - axis - 1)  # between the mapped axis and the channels
            each = bias.movedim(bias_dim, 0).unflatten(0, (-1, *ones))
            y0, bias = y0 + each.unflatten(-1, (-1, *(1,) * (-1 - operator.channel_axis))), None
        return solve(operator, plan, activations or slope, weight, y0, z0, inside, bias), (axis, axis)


class _SolveForwardMode(_Solve):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _Solve.setup_context(ctx, inputs, output)
        _, _, _, _, inside, slope, weight, *_ = inputs
        ctx.save_for_forward(inside, slope, weight, *output)

    @staticmethod
    def jvp(ctx, _operator, _plan, _activations, _done, _inside, dslope, dweight, dbias, dy0, dz0):
        (operator, plan, *_), (inside, slope, weight, y, z) = ctx.machine, ctx.saved_tensors
        if dbias is not None:
            dy0 = operator.extended(torch.zeros_like(y) if dy0 is None else dy0, dbias)
        if dweight is not None:
            dy0, _ = solve(operator, plan, None, dweight, dy0, z)
        if dslope is not None:
            dz0 = dslope * y if dz0 is None else dz0 + dslope * y
        return solve(operator, plan, _slope(ctx, slope, y, z), weight, dy0, dz0, inside)


class _WeightCotangent(Function):
    @staticmethod
    def forward(operator, plan, v, z, ensemble_ndim):
        return cotangent(operator, plan, v, z, ensemble_ndim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.operator, ctx.plan, v, z, ctx.ensemble_ndim = inputs
        ctx.save_for_backward(v, z)
        ctx.save_for_forward(v, z)

    @staticmethod
    def backward(ctx, dweight):
        _refuse_to_lose(dweight)
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


# What `apply` of a Function does besides, binding arguments to names, takes longer than a small solve.
_apply_solve: Any = super(Function, _Solve).apply  # pyright: ignore  # of super outside of a class


def _refuse_to_lose(*cotangents: Tensor | None) -> None:
    """An error where autograd, asked to record derivatives of this backward pass, would go on without them."""
    recorded = is_grad_enabled() and not torch.compiler.is_compiling()
    if recorded and any(x is not None and is_legacy_batchedtensor(x) for x in cotangents):
        raise NotImplementedError(
            "is_grads_batched=True (vectorize=True) with create_graph=True would lose derivatives, since PyTorch "
            "records none of a Function there: use torch.func, or is_grads_batched=False (vectorize=False)"
        )


def _slope(ctx, slope: Tensor | None, y: Tensor, z: Tensor) -> Slope | Tensor | None:
    _, _, activations, z_is_sigma, _ = ctx.machine
    return slope if activations is None else Slope(activations, y, z if z_is_sigma else None)


def _with_axis(x: Tensor | None, dim: int | None, axis: int, size: int) -> Tensor | None:
    """x with its mapped axis `dim` at `axis`, or repeated along a new one where it was not mapped."""
    if x is None:
        return None
    x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.movedim(0, axis)
