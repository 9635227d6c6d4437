"""What is wrong with the input of a solve: the one place with the messages. Executors only say that they will not."""

from typing import Any

import torch
from torch import Tensor

from ..pytorch import is_compiling, was_freed
from ..structure.numbers import REALS, Numbers
from ..structure.sigma import FUNCTION, NONE, Sigma
from .system import System


def explain(system: System, sigma: Sigma, weight: Any, bias: Any, y0: Any, z0: Any) -> None:
    """Raise with the argument's name, what came and what was needed, if a sweep cannot run on these; or return."""
    operator = system.operator
    first, second = _names(system, sigma)
    if y0 is None and z0 is None:
        raise ValueError(f"one of {first}, {second} must be given")
    _check_tensor("weight", weight)
    if not weight.is_floating_point():
        raise TypeError(f"weight is {weight.dtype}, a machine needs floating point")
    members = weight.ndim - len(operator.weight_shape)
    if members < 0 or weight.shape[members:] != operator.weight_shape:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, the machine needs {tuple(operator.weight_shape)}")
    if bias is not None:
        _check_like("bias", bias, weight)
        if bias.shape != (operator.channels,):
            raise ValueError(f"bias has shape {tuple(bias.shape)}, the machine needs ({operator.channels},)")
    points = {first: y0, second: z0, "y": sigma.point, "value": sigma.value}
    short = () if system.transposed else (first, second)
    explain_points(system, weight, {name: x for name, x in points.items() if x is not None}, short, sigma.numbers)


def explain_points(
    system: System, weight: Any, points: dict[str, Any], short: tuple[str, ...] = (), numbers: Numbers = REALS
) -> None:
    """The same of points alone, which have all channels or, where they may be short, those of whole blocks."""
    operator = system.operator
    _check_tensor("weight", weight)
    members, first = weight.ndim - len(operator.weight_shape), next(iter(points))
    for name, x in points.items():
        _check_like(name, x, weight)
        if x.ndim - members - (numbers is not REALS) not in operator.ndims:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, the machine needs {operator.layout}")
        _check_channels(system, name, x, name in short)
        shape, expected = operator.full_shape(x), operator.full_shape(points[first])
        if shape != expected:
            raise ValueError(
                f"{first} and {name} must agree in all but their channels, "
                f"zero-extended they are {tuple(expected)} and {tuple(shape)}"
            )
        if members and weight.shape[:members] != shape[:members]:
            raise ValueError(f"weight has shape {tuple(weight.shape)}, the machine needs {tuple(operator.weight_shape)}")


def _names(system: System, sigma: Sigma) -> tuple[str, str]:
    """The letters of the paper for what is given: to a machine, its derivative, its dual, or to f itself."""
    if sigma.mode in (FUNCTION, NONE):
        return ("y0", "z0") if sigma.mode == FUNCTION else ("y", "z")
    return ("u0", "v0") if system.transposed else ("dy0", "dz0")


def _check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if is_compiling():  # where tensors have neither layout nor memory
        return
    if x.layout is not torch.strided:
        raise TypeError(f"{name} is {x.layout}, the machine needs torch.strided")
    if x.numel() and was_freed(x):
        raise ValueError(f"{name} has no memory: its storage was freed")


def _check_like(name: str, x: Any, weight: Tensor) -> None:
    _check_tensor(name, x)
    if x.device != weight.device:
        raise ValueError(f"{name} is on {x.device}, the machine is on {weight.device}")
    if x.dtype != weight.dtype:
        raise TypeError(f"{name} is {x.dtype}, the machine is {weight.dtype}")


def _check_channels(system: System, name: str, x: Tensor, whole: bool) -> None:
    """All channels or, of an input, those of whole blocks from the first on."""
    sizes, total, ends = system.partition.sizes, system.partition.total, system.partition.ends
    channels = x.shape[system.operator.channel_axis]
    if channels == total or (whole and channels in ends):
        return
    said = f"{name} of shape {tuple(x.shape)} has {channels} channels as {system.operator.layout}"
    if channels > total:
        raise ValueError(f"{said}, the machine has {total}: sizes={sizes}")
    needed = f"whole blocks are {', '.join(map(str, ends))}" if whole else f"it needs all {total}"
    raise ValueError(f"{said}, {needed}: sizes={sizes}")
