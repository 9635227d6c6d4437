"""What is wrong with the input of a solve: the one place with the messages. Executors only say that they will not."""

from typing import Any

import torch
from torch import Tensor

from ..pytorch import is_compiling, was_freed
from ..structure.jet import Jet
from ..structure.numbers import REALS, Numbers
from ..structure.sigma import FUNCTION, NONE, SLOPE_AT, Sigma
from .system import System

NAMES = {FUNCTION: ("y0", "z0"), NONE: ("y", "z")}
"""The letters of the paper for what a machine, or f itself, is given; tangent and dual have their own."""


def explain(system: System, sigma: Sigma, weight: Any, bias: Any, y0: Any, z0: Any) -> None:
    """Raise with the argument's name, what came and what was needed, if a sweep cannot run on these; or return."""
    first, second = NAMES.get(sigma.mode, ("u0", "v0") if system.transposed else ("dy0", "dz0"))
    if y0 is None and z0 is None:
        raise ValueError(f"one of {first}, {second} must be given")
    if sigma.mode == SLOPE_AT and sigma.point is None:
        raise ValueError("the point y must be given")
    points: dict[str, Any] = {}
    for name, x in ((first, y0), (second, z0), ("y", sigma.point), ("value", sigma.value)):
        if x is not None:
            points[name] = x
    short = () if system.transposed else (first, second)
    explain_points(system, weight, points, short, bias, sigma.numbers)


def explain_points(
    system: System,
    weight: Any,
    points: dict[str, Any],
    short: tuple[str, ...] = (),
    bias: Any = None,
    numbers: Numbers = REALS,
) -> None:
    """The same of parameters and points, which have all channels or, where they may be short, those of whole blocks."""
    operator, partition = system.operator, system.partition
    stored = "entries" if system.packed else "weight"
    _check(stored, weight, weight)
    if not weight.is_floating_point():
        raise TypeError(f"{stored} is {weight.dtype}, a machine needs floating point")
    if bias is not None:
        _check("bias", bias, weight)
        if bias.shape != (operator.channels,):
            raise ValueError(f"bias has shape {tuple(bias.shape)}, the machine needs ({operator.channels},)")
    members, first, expected = weight.ndim - len(system.weight_shape), "", ()
    for name, x in points.items():
        _check(name, x, weight)
        if x.ndim - members - (not numbers.real) not in operator.ndims:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, the machine needs {operator.layout}")
        axis = x.ndim + operator.channel_axis
        channels = x.shape[axis]
        if channels != partition.total and (name not in short or channels not in partition.ends):
            ends = ", ".join(map(str, partition.ends[:-1]))
            needed = f"{ends} or {partition.total}, whole blocks" if name in short else f"all {partition.total}"
            raise ValueError(
                f"{name} of shape {tuple(x.shape)} has {channels} channels, the machine takes {needed}, "
                f"in the layout {operator.layout}: sizes={partition.sizes}"
            )
        shape = (*x.shape[:axis], partition.total, *x.shape[axis + 1 :])
        if not expected:
            first, expected = name, shape
        elif shape != expected:
            raise ValueError(
                f"{first} and {name} must agree in all but their channels, "
                f"zero-extended they are {expected} and {shape}"
            )
    if members < 0 or weight.shape[members:] != system.weight_shape or weight.shape[:members] != expected[:members]:
        raise ValueError(f"{stored} has shape {tuple(weight.shape)}, the machine needs {tuple(system.weight_shape)}")


def _check(name: str, x: Any, weight: Tensor) -> None:
    """That it is a tensor in memory, on the device and in the precision of W."""
    if not isinstance(x, Tensor | Jet):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.device != weight.device:
        raise ValueError(f"{name} is on {x.device}, the machine is on {weight.device}")
    if x.dtype != weight.dtype:
        raise TypeError(f"{name} is {x.dtype}, the machine is {weight.dtype}")
    if is_compiling():  # where tensors have neither layout nor memory
        return
    x = x.coefficients if isinstance(x, Jet) else x
    if x.layout is not torch.strided:
        raise TypeError(f"{name} is {x.layout}, the machine needs torch.strided")
    if x.numel() and was_freed(x):
        raise ValueError(f"{name} has no memory: its storage was freed")
