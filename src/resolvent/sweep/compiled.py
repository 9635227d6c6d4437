"""The sweep as an operation of compiled code, where a fast executor serves.

A compiled graph holds tensors and numbers only, so the system stands in it as integers.
"""

import torch
from torch import Tensor

from ..pytorch import is_compiling
from ..structure.numbers import from_serialized
from ..structure.sigma import Sigma
from .executor import EXECUTORS
from .steps import accumulate, steps
from .system import System, from_integers


def sweep(
    system: System, sigma: Sigma, weight: Tensor, bias: Tensor | None, y0: Tensor | None, z0: Tensor | None
) -> tuple[Tensor, Tensor]:
    """One operation, or all steps: where none serves, of ensembles, and in what is exported, which knows no executors.

    In a space that the executor does not serve, the operation runs step by step, in the precision of eager code and
    not slower than what the compiler makes of the steps, which are the library's convolutions.
    """
    if _one_operation(system, weight, len(system.weight_shape)):
        tensors = weight, bias, y0, z0, sigma.point, sigma.value, sigma.inside
        numbers = sigma.numbers.serialized()
        return torch.ops.resolvent.sweep(
            system.integers(), *numbers, system.transposed, sigma.mode, sigma.history, *tensors
        )
    return steps(system, sigma, weight, bias, y0, z0)


def cotangent(system: System, v: Tensor, z: Tensor, members: int) -> Tensor:
    """Q, in the same way."""
    if _one_operation(system, v, v.ndim - members):
        return torch.ops.resolvent.cotangent(system.integers(), v, z)
    return accumulate(system, v, z, members)


def _one_operation(system: System, x: Tensor, ndim: int) -> bool:
    return is_compiling() and x.ndim == ndim and system.in_one_operation(x.device.type, x.dtype)


_library = torch.library.Library("resolvent", "DEF")
_library.define(
    "sweep(int[] system, int[] numbers, float[] factors, bool transposed, int mode, int history, Tensor weight, "
    "Tensor? bias, Tensor? y0, Tensor? z0, Tensor? point, Tensor? value, Tensor? inside) -> (Tensor, Tensor)"
)
_library.define("cotangent(int[] system, Tensor v, Tensor z) -> Tensor")


@torch.library.impl(_library, "sweep", "CompositeExplicitAutograd")
def _(integers, numbers, factors, transposed, mode, history, weight, bias, y0, z0, point, value, inside):
    system, over = from_integers(tuple(integers)), from_serialized(tuple(numbers), tuple(factors))
    sigma = Sigma(mode, point, value, inside, history, over)
    system = system.dual if transposed else system
    done = EXECUTORS[weight.device.type].sweep(system, sigma, weight, bias, y0, z0)
    return steps(system, sigma, weight, bias, y0, z0) if done is None else done


@torch.library.register_fake("resolvent::sweep", lib=_library)
def _(integers, numbers, factors, transposed, mode, history, weight, bias, y0, z0, point, value, inside):
    like = z0 if y0 is None else y0
    shape = from_integers(tuple(integers)).operator.full_shape(like)
    return like.new_empty(shape), like.new_empty(shape)


@torch.library.impl(_library, "cotangent", "CompositeExplicitAutograd")
def _(integers, v, z):
    system = from_integers(tuple(integers))
    done = EXECUTORS[v.device.type].cotangent(system, v, z)
    return accumulate(system, v, z, 0) if done is None else done


@torch.library.register_fake("resolvent::cotangent", lib=_library)
def _(integers, v, z):
    return v.new_empty(from_integers(tuple(integers)).weight_shape)
