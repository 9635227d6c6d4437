"""The one solve: forward pass, tangent machine and dual machine, and their derivatives of every order.

`_Solve` finds (y, z); its cotangents are another solve, with slopes for σ and W transposed, and its tangents one
more. What remains, the cotangent of W, is bilinear, and its derivatives are again solves with σ = 0.
Dynamo refuses a Function that defines `jvp`, so forward mode stands in subclasses that only eager code meets.
"""

from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import Function

from .. import pytorch
from ..pytorch import dispatched, is_compiling, watched
from ..structure.jet import Jet, common, lifted, lowered
from ..structure.numbers import Numbers
from ..structure.sigma import FUNCTION, SLOPE_AT, ZERO, Sigma
from . import compiled
from .executor import EXECUTORS
from .explain import explain, explain_points
from .steps import accumulate, steps
from .system import System


def solve(system: System, sigma: Sigma, weight: Tensor, bias: Tensor | None, y0: Any, z0: Any) -> tuple[Any, Any]:
    """The (y, z) with y = W z + y0 + bias and z = σ(y) + z0; with `system.dual`, W* stands for W.

    Either of y0, z0 may be None for zero, not both; of each the first blocks are enough.
    The weight may lead with axes of members, which the points then share. Of jets, y and z are jets.
    """
    if type(y0) is Jet or type(z0) is Jet or type(sigma.point) is Jet:
        return _over_numbers(system, sigma, weight, bias, y0, z0)
    if watched():
        return _transformed(system, sigma, weight, bias, y0, z0)
    if is_grad_enabled() and _recorded(weight, bias, y0, z0, sigma.point):
        if sigma.mode == SLOPE_AT:
            explain(system, sigma, weight, bias, y0, z0)  # the slope is taken before anything else looks at its point
            sigma = sigma.with_slope(system.activations)
        mode, point, _, inside, history, numbers = sigma
        tensors = pytorch.alive(inside, point, weight, bias, y0, z0)
        return _apply_solve(system, mode, history, numbers, *tensors)
    return sweep(system, sigma, weight, bias, y0, z0)


def sweep(
    system: System, sigma: Sigma, weight: Tensor, bias: Tensor | None, y0: Tensor | None, z0: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The (y, z) of `solve`, without derivatives: by the executor of the device if it serves, or step by step."""
    executor = EXECUTORS.get(weight.device.type)
    done = None if executor is None else executor.sweep(system, sigma, weight, bias, y0, z0)
    if done is None:
        explain(system, sigma, weight, bias, y0, z0)
        done = steps(system, sigma, weight, bias, y0, z0)
    return done


def weight_cotangent(system: System, weight: Tensor, v: Any, z: Any) -> Tensor:
    """Q = v z*, summed over the batch, where W is read, and zero elsewhere."""
    if type(v) is Jet or type(z) is Jet:
        event_ndim, numbers = system.operator.event_ndim, common(v, z)
        v, z = (_as_rows(lifted(x, numbers, event_ndim), numbers, event_ndim) for x in (v, z))
    if watched():
        v, z, weight = map(pytorch.cast, (v, z, weight))
    elif not (is_grad_enabled() and _recorded(v, z)):
        executor = EXECUTORS.get(weight.device.type)
        done = None if executor is None else executor.cotangent(system, v, z, weight)
        if done is not None:
            return done
    explain_points(system, weight, dict(v=v, z=z))
    return _cotangent(system, v, z, 0)


def _cotangent(system: System, v: Tensor, z: Tensor, members: int) -> Tensor:
    """Q, of an ensemble if both lead with members."""
    if _differentiated(v, z):
        return _apply(_WeightCotangent, _WeightCotangentForwardMode, system, v, z, members)
    return _WeightCotangent.forward(system, v, z, members)


def _over_numbers(system: System, sigma: Sigma, weight: Tensor, bias: Tensor | None, y0: Any, z0: Any) -> Any:
    """The same solve of points with an axis of numbers, whose multiplication σ knows."""
    event_ndim, numbers = system.operator.event_ndim, common(y0, z0, sigma.point, sigma.value)
    point, value = (lifted(x, numbers, event_ndim) for x in (sigma.point, sigma.value))
    try:
        over = sigma._replace(point=point, value=value, numbers=numbers)
        solution = solve(system, over, weight, bias, lifted(y0, numbers, event_ndim), lifted(z0, numbers, event_ndim))
    except (TypeError, ValueError):
        explain(system, sigma, weight, bias, y0, z0)  # in the shapes of the jets
        raise
    return tuple(lowered(x, numbers, event_ndim) for x in solution)


def _recorded(*factors: Any) -> bool:
    """Whether autograd records an operation on these."""
    for x in factors:  # noqa: SIM110  # any() takes longer than a small product
        if getattr(x, "requires_grad", False):  # what is no tensor is refused later
            return True
    return False


def _transformed(system: System, sigma: Sigma, weight: Any, bias: Any, y0: Any, z0: Any) -> tuple[Tensor, Tensor]:
    """The solve where something compiles, traces, transforms or casts. Casts are recorded, so they come first."""
    weight, bias, y0, z0, point, value = map(pytorch.cast, (weight, bias, y0, z0, sigma.point, sigma.value))
    sigma = sigma._replace(point=point, value=value)
    explain(system, sigma, weight, bias, y0, z0)
    return _solve(system, sigma, weight, bias, y0, z0)


def _solve(
    system: System, sigma: Sigma, weight: Tensor, bias: Tensor | None, y0: Tensor | None, z0: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The solve within another one's derivatives, whatever watches: its tensors are in order and cast already."""
    if _differentiated(weight, bias, y0, z0, sigma.point):
        return _apply(_Solve, _SolveForwardMode, *_arguments(system, sigma, weight, bias, y0, z0))
    return (compiled.sweep if dispatched() else sweep)(system, sigma, weight, bias, y0, z0)


def _differentiated(*factors: Any) -> bool:
    """Whether anything would see the derivatives of an operation on these."""
    transformed = is_compiling() or pytorch.functorch() or pytorch.forward_mode()
    return transformed or (is_grad_enabled() and _recorded(*factors))


def _arguments(system: System, sigma: Sigma, *tensors: Tensor | None) -> tuple:
    """Those of `_Solve`, with slopes that autograd sees the point of."""
    sigma = sigma.with_slope(system.activations)
    return system, sigma.mode, sigma.history, sigma.numbers, sigma.inside, sigma.point, *tensors


def _apply(function: type[Function], forward_mode: type[Function], *args: Any) -> Any:
    if is_compiling():
        if pytorch.forward_mode():
            return _forward_mode(forward_mode, *args)
        # Under torch.func, Dynamo would differentiate the forward pass of tensors that go in as they are; and what goes
        # in twice it refuses.
        return function.apply(*(x.view_as(x) if isinstance(x, Tensor) else x for x in args))
    if pytorch.functorch():
        return _forward_mode(forward_mode, *args)
    return pytorch.apply(forward_mode if pytorch.forward_mode() else function)(*pytorch.alive(*args))


@pytorch.not_compiled
def _forward_mode(function: type[Function], *args: Any) -> Any:
    if pytorch.nested_forward_modes() > 1:
        raise NotImplementedError(
            "forward mode inside of forward mode would lose derivatives, since PyTorch drops those of a Function "
            "there: use it once (jvp, jacfwd or hessian), and jacrev, vjp or grad for the others"
        )
    return function.apply(*args)


class _Solve(Function):
    @staticmethod
    def forward(system, mode, history, numbers, inside, slope, weight, bias, y0, z0):
        sigma = Sigma(mode, slope, None, inside, history, numbers)
        return (compiled.sweep if dispatched() else sweep)(system, sigma, weight, bias, y0, z0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        system, mode, history, numbers, inside, slope, weight, _, y0, z0 = inputs
        axis = system.operator.channel_axis
        ctx.facts = system, mode, history, numbers, z0 is None
        ctx.channels = None if y0 is None else y0.shape[axis], None if z0 is None else z0.shape[axis]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inside, slope, weight, *output)

    @staticmethod
    def backward(ctx, v0, u0):
        if v0 is None and u0 is None:
            return (None,) * 10
        _refuse_to_lose(v0, u0)
        (system, *_, numbers, _), (inside, slope, weight, y, z) = ctx.facts, pytorch.alive(*ctx.saved_tensors)
        *_, by_slope, by_weight, by_bias, by_y0, by_z0 = ctx.needs_input_grad
        sigma = _slope(ctx, inside, slope, y, z)
        of_slope = of_bias = of_y0 = of_z0 = None
        if by_weight and not (by_slope or by_z0 or system.transposed or is_grad_enabled() or watched()):
            executor = EXECUTORS.get(weight.device.type)
            arguments = system.dual, sigma, weight, u0, v0, z, by_bias, (ctx.channels[0] or 0) if by_y0 else 0
            done = None if executor is None else executor.gradients(*arguments)
            if done is not None:
                Q, of_bias, of_y0 = done
                return None, None, None, None, None, None, Q, of_bias, of_y0, None
        u, v, Q = _adjoint(system, sigma, weight, u0, v0, z, by_weight)
        if by_slope:
            of_slope = numbers.cotangent(u, y, -1 - system.operator.event_ndim, system.transposed)
        if by_bias:
            of_bias = _of_bias(system, numbers, v)
        if by_y0:
            of_y0 = _first(v, system, ctx.channels[0])
        if by_z0:
            of_z0 = _first(u, system, ctx.channels[1])
        return None, None, None, None, None, of_slope, Q, of_bias, of_y0, of_z0

    @staticmethod
    def vmap(info, in_dims, system, mode, history, numbers, inside, slope, weight, bias, y0, z0):
        """A mapped weight opens an axis of members in front; other mapped axes become part of the batch."""
        operator, size = system.operator, info.batch_size
        *_, inside_dim, slope_dim, weight_dim, bias_dim, y0_dim, z0_dim = in_dims
        members = weight.ndim - len(system.weight_shape)
        axis = 0 if weight_dim is not None else members
        weight = weight if weight_dim is None else weight.movedim(weight_dim, 0)
        mapped = ((inside, inside_dim), (slope, slope_dim), (y0, y0_dim), (z0, z0_dim))
        inside, slope, y0, z0 = (_with_axis(x, dim, axis, size) for x, dim in mapped)
        if bias_dim is not None:
            given: Any = z0 if y0 is None else y0
            y0 = operator.extended(torch.zeros_like(given) if y0 is None else given)
            ones = (1,) * (y0.ndim + operator.channel_axis - axis - 1 - (not numbers.real))
            each = (
                bias.movedim(bias_dim, 0)
                .unflatten(0, (-1, *ones))
                .unflatten(-1, (-1, *(1,) * (-1 - operator.channel_axis)))
            )
            y0, bias = y0 + numbers.embedded(each, -1 - operator.event_ndim), None
        like: Any = z0 if y0 is None else y0
        joined = None
        if weight_dim is None and like.ndim - members - (not numbers.real) not in operator.ndims:
            joined = like.shape[axis : axis + 2]
            inside, slope, y0, z0 = (None if x is None else x.flatten(axis, axis + 1) for x in (inside, slope, y0, z0))
        solution = _solve(system, Sigma(mode, slope, None, inside, history, numbers), weight, bias, y0, z0)
        y, z = (x if joined is None else x.unflatten(axis, joined) for x in solution)
        return (y, z), (axis, axis)


_apply_solve = pytorch.apply(_Solve)


class _SolveForwardMode(_Solve):
    @staticmethod
    def setup_context(ctx, inputs, output):
        _Solve.setup_context(ctx, inputs, output)
        _, _, _, _, inside, slope, weight, *_ = inputs
        ctx.save_for_forward(inside, slope, weight, *output)

    @staticmethod
    def jvp(ctx, _system, _mode, _history, _numbers, _inside, dslope, dweight, dbias, dy0, dz0):
        (system, _, history, numbers, _), (inside, slope, weight, y, z) = ctx.facts, ctx.saved_tensors
        zero = Sigma(ZERO.mode, history=history, numbers=numbers)
        dy0 = y.new_zeros(y.shape) if dbias is not None and dy0 is None and dz0 is None else dy0
        if dweight is not None:
            dy0, _ = _solve(system, zero, dweight, None, dy0, z)
        if dslope is not None:
            more = numbers.image(dslope, y, -1 - system.operator.event_ndim, system.transposed)
            dz0 = more if dz0 is None else system.operator.extended(dz0) + more
        return _solve(system, _slope(ctx, inside, slope, y, z), weight, dbias, dy0, dz0)


class _WeightCotangent(Function):
    @staticmethod
    def forward(system, v, z, members):
        if dispatched():
            return compiled.cotangent(system, v, z, members)
        executor = None if members else EXECUTORS.get(v.device.type)
        done = None if executor is None else executor.cotangent(system, v, z)
        return accumulate(system, v, z, members) if done is None else done

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.system, v, z, ctx.members = inputs
        ctx.save_for_backward(v, z)
        ctx.save_for_forward(v, z)

    @staticmethod
    def backward(ctx, dweight):
        _refuse_to_lose(dweight)
        v, z = pytorch.alive(*ctx.saved_tensors)
        dv, _ = _solve(ctx.system, ZERO, dweight, None, None, z)
        dz, _ = _solve(ctx.system.dual, ZERO, dweight, None, None, v)
        return None, dv, dz, None

    @staticmethod
    def vmap(info, in_dims, system, v, z, members):
        factors: Any = [_with_axis(x, dim, 0, info.batch_size) for x, dim in zip((v, z), in_dims[1:3], strict=True)]
        return _cotangent(system, factors[0], factors[1], members + 1), 0


class _WeightCotangentForwardMode(_WeightCotangent):
    @staticmethod
    def jvp(ctx, _system, dv, dz, _members):
        v, z = ctx.saved_tensors
        return sum(_cotangent(ctx.system, *factors, ctx.members) for factors in ((dv, z), (v, dz)))


def _adjoint(
    system: System, sigma: Sigma, weight: Tensor, u0: Any, v0: Any, z: Tensor, by_weight: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(u, v) of the dual machine and, if it is wanted, the cotangent of W."""
    u, v = _solve(system.dual, sigma, weight, None, u0, v0)
    if not by_weight:
        return u, v, None
    forward, (to, source) = (system.dual, (z, v)) if system.transposed else (system, (v, z))
    members, event_ndim = weight.ndim - len(system.weight_shape), system.operator.event_ndim
    to, source = (_as_rows(x, sigma.numbers, event_ndim) for x in (to, source))
    return u, v, _cotangent(forward, to, source, members)


def _as_rows(x: Any, numbers: Numbers, event_ndim: int) -> Any:
    """Numbers are more rows of the batch, for W."""
    no_rows = numbers.real or x.ndim == 1 + event_ndim
    return x if no_rows else x.flatten(-2 - event_ndim, -1 - event_ndim)


def _slope(ctx, inside: Tensor | None, slope: Tensor | None, y: Tensor, z: Tensor) -> Sigma:
    """What stands for σ in the derivatives of a solve."""
    _, mode, history, numbers, z_is_sigma = ctx.facts
    if mode == FUNCTION:
        return Sigma(SLOPE_AT, y, z if z_is_sigma else None, inside, history, numbers)
    return Sigma(mode, slope, None, inside, history, numbers)


def _first(x: Tensor, system: System, channels: int) -> Tensor:
    """The first channels of x, which an input had."""
    return x if channels == system.operator.channels else x.narrow(system.operator.channel_axis, 0, channels)


def _of_bias(system: System, numbers: Numbers, v: Tensor) -> Tensor:
    """The sum over all but the channels, of real numbers."""
    v = v if numbers.real else v.select(-1 - system.operator.event_ndim, 0)
    others = [i for i in range(-v.ndim, 0) if i != system.operator.channel_axis]
    return v.sum(others) if others else v


def _refuse_to_lose(*cotangents: Tensor | None) -> None:
    """An error where autograd, asked to record derivatives of this backward pass, would go on without them."""
    if is_grad_enabled() and any(x is not None and pytorch.is_batched_cotangent(x) for x in cotangents):
        raise NotImplementedError(
            "is_grads_batched=True (vectorize=True) with create_graph=True would lose derivatives, since PyTorch "
            "records none of a Function there: use torch.func, or is_grads_batched=False (vectorize=False)"
        )


def _with_axis(x: Tensor | None, dim: int | None, axis: int, size: int) -> Tensor | None:
    """x with its mapped axis `dim` at `axis`, or repeated along a new one where it was not mapped."""
    if x is None:
        return None
    x = x.unsqueeze(0).expand(size, *x.shape) if dim is None else x.movedim(dim, 0)
    return x.movedim(0, axis)
