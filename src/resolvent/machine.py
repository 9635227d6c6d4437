"""The family: what every machine is and does, whatever kind it is of.

A point of X is a tensor, a tuple of tensors (y, z), or a mapping of tensors by name. None, or a missing part, is 0.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from .pytorch import each_tensor

Point: TypeAlias = Any  # Tensor | tuple[Tensor | None, ...] | Mapping[str, Tensor]
Projection: TypeAlias = Callable[[Point], Point]


class NotAMachine(ValueError):
    """id - f cannot be inverted in finitely many steps; the message has the evidence."""


class Machine(metaclass=ABCMeta):
    """An endofunction f of X that can be inverted: its resolvent R_f = (id - f)^-1 exists, and has finite depth."""

    @abstractmethod
    def endofunction(self, x: Point) -> Point:
        """f(x)."""

    @abstractmethod
    def depth_at(self, x: Point) -> int:
        """The depth of f at points like x."""

    @property
    def depth(self) -> int:
        """`depth_at` where it is one number for all points."""
        return self.depth_at(None)

    def depth_sequence(self, x0: Point, start: Point | None = None) -> list[Point]:
        """h_0 = x0 + φ and h_i = x0 + f(h_{i-1}) up to the depth, for a start φ in the image of f; none means 0."""
        states = [x0 if start is None else plus(x0, start)]
        for _ in range(self.depth_at(x0)):
            states.append(plus(x0, self.endofunction(states[-1])))
        return states

    def resolvent(self, x0: Point) -> Point:
        """The h with h = x0 + f(h): where its depth sequence ends (Theorem 1)."""
        return self.depth_sequence(x0)[-1]

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """Projections P_0 … P_d = 0 of points like x, onto what is not final after each step (Definition 2)."""
        raise ValueError(f"of a {type(self).__name__} nothing but its depth is known: it has no cofiltration")

    def tangent(self, x: Point) -> "Linear":
        """Df(x), a machine (Proposition 2). Its resolvent at x = R_f(x0) is the derivative of R_f at x0."""
        return Tangent(self, x)

    def dual(self, x: Point) -> "Linear":
        """(Df(x))*, a machine (Proposition 2). Its resolvent at x = R_f(x0) backpropagates through R_f."""
        return self.tangent(x).dual()

    def __add__(self, other: Any) -> Any:
        return _refuse_to_add(self, other)

    def __radd__(self, other: Any) -> Any:
        return _refuse_to_add(other, self)


class Linear(Machine):
    """A linear machine: its tangent is itself, and the dual of its dual acts as it does."""

    def tangent(self, x: Point = None) -> "Linear":
        return self

    @abstractmethod
    def dual(self, x: Point = None) -> "Linear":
        """The machine of the adjoint of f."""


class Tangent(Linear):
    """Df(x) of any f, by `torch.func`. Entries that are not of floating point are constants."""

    def __init__(self, machine: Machine, x: Point):
        self.machine, self.x = machine, x

    def endofunction(self, x: Point) -> Point:
        at, given = _floats(self.x), _parts(x)
        tangents = {name: given[name] if name in given else torch.zeros_like(at[name]) for name in at}
        return self._like(torch.func.jvp(self._on_floats, (at,), (tangents,))[1])

    def depth_at(self, x: Point) -> int:
        return self.machine.depth_at(self.x)

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """That of f: Df maps V_{i-1} into V_i (Definition 2)."""
        return self.machine.cofiltration(self.x)

    def dual(self, x: Point = None) -> "Dual":
        return Dual(self.machine, self.x)

    def _on_floats(self, at: dict[Any, Any]) -> dict[Any, Any]:
        return _floats(self.machine.endofunction(self._like(_parts(self.x) | at)))

    def _like(self, parts: dict[Any, Any]) -> Point:
        """The parts as a point of the kind of x."""
        if isinstance(self.x, tuple | list):
            return tuple(parts.get(i) for i in range(len(self.x)))
        return parts if isinstance(self.x, Mapping) else parts[None]


class Dual(Tangent):
    """(Df(x))* of any f, by `torch.func`."""

    def endofunction(self, x: Point) -> Point:
        at, given = _floats(self.x), _parts(x)
        image, pull = torch.func.vjp(self._on_floats, at)[:2]
        cotangents = {name: given[name] if name in given else torch.zeros_like(value) for name, value in image.items()}
        return self._like(pull(cotangents)[0])

    def cofiltration(self, x: Point = None) -> list[Projection]:
        return annihilators(super().cofiltration())

    def dual(self, x: Point = None) -> Tangent:  # pyright: ignore  # of the dual, the tangent
        return Tangent(self.machine, self.x)


def annihilators(projections: list[Projection]) -> list[Projection]:
    """The cofiltration of the dual machine, of one of orthogonal projections: id - P_{d-1-i}, and 0 (Proposition 3)."""
    *_, last = projections

    def complement(P: Projection) -> Projection:
        return lambda x: plus(x, transformed(P(x), torch.neg))

    return [*map(complement, reversed(projections[:-1])), last]


def plus(x: Point, other: Point, where: str = "") -> Point:
    """x + other; what is missing in one of them is zero."""
    if x is None or other is None:
        return other if x is None else x
    if isinstance(x, Mapping):
        both = x.keys() & other.keys()
        return {**x, **other, **{name: plus(x[name], other[name], f" in {name}") for name in both}}
    if isinstance(x, tuple | list):
        return tuple(plus(a, b) for a, b in zip(x, other, strict=True))
    if x.shape != getattr(other, "shape", None):
        came = tuple(other.shape) if hasattr(other, "shape") else type(other).__name__
        raise ValueError(f"f must map X to X, but gives {came}{where} at a point of shape {tuple(x.shape)}")
    return x + other


def transformed(x: Point, function: Callable[[Any], Any]) -> Point:
    """The function of each tensor of a point."""
    if isinstance(x, Mapping):
        return {name: transformed(value, function) for name, value in x.items()}
    if isinstance(x, tuple | list):
        return tuple(transformed(value, function) for value in x)
    return None if x is None else each_tensor(function, x)


def _parts(x: Point) -> dict[Any, Any]:
    """What a point has, by name or place; of a tensor, itself."""
    if not isinstance(x, Mapping | tuple | list):
        return {} if x is None else {None: x}
    named = x.items() if isinstance(x, Mapping) else enumerate(x)
    return {name: value for name, value in named if value is not None}


def _floats(x: Point) -> dict[Any, Any]:
    return {name: value for name, value in _parts(x).items() if value.is_floating_point()}


def _refuse_to_add(f: Any, g: Any) -> Any:
    """Sums are of machines whose points have named parts; those of the algebra add by themselves."""
    if not (isinstance(f, Machine | nn.Module) and isinstance(g, Machine | nn.Module)):
        return NotImplemented
    raise TypeError(
        f"{type(f).__name__} and {type(g).__name__} do not add: sums are of layers between named parts. A machine or "
        "module is put in one as Layer(machine, reads=…, writes=…) or, if it is structured, as machine.as_sum()"
    )
