"""One sweep over the blocks, without derivatives: step by step in PyTorch, or by a faster executor where one serves."""

from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import lru_cache, partial
from importlib import import_module
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._C import _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor

from ..executors import native as _native
from ..structure.activation import Activations, Sigma, Slope
from ..structure.operator import Operator, Product
from .plan import Plan


def executor(operator: Operator, activations: Activations, x: Tensor) -> str:
    """What sweeps machines with this operator and σ, on the device and in the precision of x."""
    module = fast(x) if activations.codes is not None else None
    if module is None or not module.serves(operator, x, positions=1):
        return "torch"
    return module.__name__.split(".")[2]


def fast(x: Tensor) -> Any:
    """The module whose `sweep` and `cotangent` need few calls on this device; they give None where they do not."""
    return _native if x.is_cpu else _kernels() if x.is_cuda else None


@lru_cache(maxsize=1)
def _kernels() -> Any:
    """The kernels for GPUs, first asked for when a machine is on one: importing their compiler takes a while."""
    try:
        return import_module("resolvent.executors.triton.sweep")
    except ImportError:
        return None


def sweep(
    operator: Operator,
    plan: Plan,
    sigma: Sigma,
    weight: Tensor,
    y0: Tensor | None,
    z0: Tensor | None,
    inside: Tensor | None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The (y, z) of `solve`."""
    if torch.compiler.is_compiling():
        if plan.handle is not None and weight.ndim == len(operator.weight_shape):
            slope = sigma if isinstance(sigma, Tensor) else None
            of_y = isinstance(sigma, Activations)
            return torch.ops.resolvent.sweep(plan.handle, plan.transposed, of_y, slope, weight, y0, z0, inside, bias)
        return _step_by_step(operator, plan, sigma, weight, y0, z0, inside, bias)
    module = fast(weight)
    if module is not None and not _len_torch_dispatch_stack():
        with _without_autocast(weight):
            done = module.sweep(operator, plan, sigma, weight, y0, z0, inside, bias)
        if done is not None:
            return done
    return _step_by_step(operator, plan, sigma, weight, y0, z0, inside, bias)


def cotangent(operator: Operator, plan: Plan, v: Tensor, z: Tensor, ensemble_ndim: int) -> Tensor:
    """The Q of `weight_cotangent`."""
    if torch.compiler.is_compiling():
        if plan.handle is not None and not ensemble_ndim:
            return torch.ops.resolvent.cotangent(plan.handle, v, z)
    elif not ensemble_ndim and not _len_torch_dispatch_stack():
        module = fast(v)
        with _without_autocast(v):
            done = None if module is None else module.cotangent(operator, plan, v, z)
        if done is not None:
            return done
    ensemble = v.shape[:ensemble_ndim]
    Q = _batched_as(v.new_zeros((*((prod(ensemble),) if ensemble else ()), *operator.weight_shape)), z)
    v, z = (_flatten(x, ensemble_ndim, operator.event_ndim) for x in (v, z))
    with _without_autocast(v):
        for rectangle in plan.rectangles:
            operator.accumulate_cotangent(Q, v, z, rectangle)
    return Q.view(*ensemble, *operator.weight_shape)


# Compiled graphs hold tensors and numbers only, so there a sweep is an operation that finds the rest by a number.
_handled: list[tuple[Operator, Plan, Activations]] = []


def with_handle(operator: Operator, plan: Plan, activations: Activations) -> Plan:
    """The plan for compiled code, in which one of the fast executors is to sweep."""
    machine = (operator, plan, activations)
    if machine not in _handled:
        _handled.append(machine)
    plan, dual = copy(plan), copy(plan.dual)
    plan.dual, dual.dual = dual, plan
    plan.handle = dual.handle = _handled.index(machine)
    return plan


_library = torch.library.Library("resolvent", "DEF")
_library.define(
    "sweep(int handle, bool transposed, bool of_y, Tensor? slope, Tensor weight, Tensor? y0, Tensor? z0, "
    "Tensor? inside, Tensor? bias) -> (Tensor, Tensor)"
)
_library.define("cotangent(int handle, Tensor v, Tensor z) -> Tensor")


@torch.library.impl(_library, "sweep", "CompositeExplicitAutograd")
def _(handle, transposed, of_y, slope, weight, y0, z0, inside, bias):
    operator, plan, activations = _handled[handle]
    sigma = activations if of_y else slope
    return sweep(operator, plan.dual if transposed else plan, sigma, weight, y0, z0, inside, bias)


@torch.library.register_fake("resolvent::sweep", lib=_library)
def _(handle, transposed, of_y, slope, weight, y0, z0, inside, bias):
    like = z0 if y0 is None else y0
    shape = _handled[handle][0].full_shape(like)
    return like.new_empty(shape), like.new_empty(shape)


@torch.library.impl(_library, "cotangent", "CompositeExplicitAutograd")
def _(handle, v, z):
    operator, plan, _ = _handled[handle]
    return cotangent(operator, plan, v, z, 0)


@torch.library.register_fake("resolvent::cotangent", lib=_library)
def _(handle, v, z):
    return v.new_empty(_handled[handle][0].weight_shape)


def _step_by_step(operator, plan, sigma: Any, weight, y0, z0, inside, bias=None) -> tuple[Tensor, Tensor]:
    y0 = None if y0 is None else operator.extended(y0, bias)
    like = z0 if y0 is None else y0
    ensemble_ndim = weight.ndim - len(operator.weight_shape)

    def flat(x: Any) -> Any:
        return None if x is None else _flatten(x, ensemble_ndim, operator.event_ndim)

    start = like.new_zeros if sigma is None or plan.history else like.new_empty  # where σ writes all of z
    y, z = (
        _batched_as(flat(new(like.shape) if x is None else x.clone(memory_format=torch.contiguous_format)), weight)
        for x, new in ((y0, like.new_zeros), (z0, start))
    )
    activations: Any = sigma
    slope, value = sigma if isinstance(sigma, Tensor) else None, None
    if isinstance(sigma, Slope):
        activations = sigma.activations
        if sigma.z is not None and all(a.times_slope for a in activations.blocks):
            value = sigma.z.detach()  # the slope's derivatives are by the point it is taken at
        else:
            slope = sigma.slope
    slope, value, inside = flat(slope), flat(value), flat(inside)
    if ensemble_ndim > 1:
        weight = weight.flatten(0, ensemble_ndim - 1)
    with _without_autocast(weight):
        add_product = operator.product(weight, plan.transposed)
        for step in plan.steps:
            if isinstance(step, Product):
                add_product(y, z, step, False)
                continue
            if sigma is None:
                continue
            part = partial(operator.part, region=step.region)
            if slope is not None:
                new = part(slope) * part(y)
            elif value is not None:
                new = activations.blocks[step.block].times_slope(part(y), part(value))
            else:
                new = activations.blocks[step.block].function(part(y))
            new = new if inside is None else new.where(part(inside), 0)
            part(z).copy_(new) if z0 is None else part(z).add_(new)
    return y.view(like.shape), z.view(like.shape)


def _batched_as(x: Tensor, factor: Tensor) -> Tensor:
    """x with the axis of the factor that `is_grads_batched` hides, if any, so that it can be written to in place."""
    batched = not torch.compiler.is_compiling() and is_legacy_batchedtensor(factor)
    return x + factor.new_zeros(()) if batched else x


def _without_autocast(x: Tensor) -> AbstractContextManager:
    """Points and weights came in the precision to compute in, also when a backward pass runs under autocast."""
    if not _is_any_autocast_enabled():
        return nullcontext()
    device = x.device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _flatten(x: Tensor, ensemble_ndim: int, event_ndim: int) -> Tensor:
    """(*ensemble, *batch, *event) as (member, batch, *event), or as (batch, *event) where there is no ensemble."""
    split = x.ndim - event_ndim
    ensemble = (prod(x.shape[:ensemble_ndim]),) if ensemble_ndim else ()
    return x.reshape(*ensemble, prod(x.shape[ensemble_ndim:split]), *x.shape[split:])
