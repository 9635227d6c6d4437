"""The derivative of a structured machine at a point, and its dual: machines, and the same solve with slopes for σ."""

from typing import Any

import torch
from torch import Tensor

from .. import pytorch
from ..machine import Linear, Point, Projection, annihilators
from ..structure.jet import Jet, common, lifted, lowered
from ..structure.sigma import SLOPE_AT, ZERO, Sigma
from ..sweep.explain import explain_points
from ..sweep.solve import solve
from ..sweep.system import System


class Tangent(Linear):
    """dy = W dz + dy0, dz = σ'(y) ⊙ dy + dz0. The point y is looked at when it is used."""

    def __init__(self, machine: Any, y: Any, value: Any):
        self.machine, self.system, self.sigma = machine, machine._system, Sigma(SLOPE_AT, y, value)

    @property
    def y(self) -> Any:
        return self.sigma.point

    def solve(self, dy0: Tensor | Jet | None = None, dz0: Tensor | Jet | None = None) -> tuple[Any, Any]:
        """(dy, dz), of inputs with the channels of whole blocks; None is zero."""
        return solve(self.system, self.sigma, pytorch.weight_and_bias(self.machine)[0], None, dy0, dz0)

    def resolvent(self, x0: Point) -> Point:
        return self.solve(*pair(x0))

    def endofunction(self, x: Point) -> Point:
        """(W dz, σ'(y) ⊙ dy) or, for the dual, (W* v, σ'(y) ⊙ u)."""
        weight, names = pytorch.weight_and_bias(self.machine)[0], ("u", "v") if self.system.transposed else ("dy", "dz")
        y, z = both(self.system, weight, x, names)
        explain_points(self.system, weight, {names[0]: y, "y": self.y})
        Wz, _ = solve(self.system, ZERO, weight, None, None, z)
        event_ndim, numbers = self.system.operator.event_ndim, common(y, self.y)
        slope = self.system.activations.slope(pytorch.cast(self.y))
        slope, y = (lifted(x, numbers, event_ndim) for x in (slope, pytorch.cast(y)))
        return Wz, lowered(numbers.image(slope, y, -1 - event_ndim, self.system.transposed), numbers, event_ndim)

    def depth_at(self, x: Point = None) -> int:
        return self.machine.depth_at(self.y)

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """That of the machine (Proposition 3)."""
        return self.machine.cofiltration(self.y)

    def dual(self, x: Point = None) -> "Dual":
        return Dual(self.machine, self.y, self.sigma.value)


class Dual(Tangent):
    """u = W* v + u0, v = σ'(y) ⊙ u + v0."""

    def __init__(self, machine: Any, y: Any, value: Any):
        self.machine, self.system, self.sigma = machine, machine._system.dual, Sigma(SLOPE_AT, y, value)

    def solve(self, u0: Tensor | Jet | None = None, v0: Tensor | Jet | None = None) -> tuple[Any, Any]:
        """(u, v), of cotangents with all channels, as `machine.placed` makes one of a block's; None is zero."""
        return solve(self.system, self.sigma, pytorch.weight_and_bias(self.machine)[0], None, u0, v0)

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """What annihilates the machine's, in which u belongs to z and v to y."""
        return [_swapped(P) for P in annihilators(self.machine.cofiltration(self.y))]

    def dual(self, x: Point = None) -> Tangent:  # pyright: ignore  # of the dual, the tangent
        return Tangent(self.machine, self.y, self.sigma.value)


def pair(x: Point) -> tuple[Any, Any]:
    """(y, z) of a point, or of y alone."""
    if not isinstance(x, tuple | list):
        return x, None
    if len(x) != 2:
        raise ValueError(f"a point of a structured machine is a pair (y, z), got {len(x)} entries")
    return x[0], x[1]


def both(system: System, weight: Tensor, x: Point, names: tuple[str, str]) -> tuple[Any, Any]:
    """Both halves of a pair of which one may be None for zero, with all channels."""
    y, z = pair(x)
    if y is None and z is None:
        raise ValueError(f"one of {', '.join(names)} must be given")
    explain_points(system, weight, {name: half for name, half in zip(names, (y, z), strict=True) if half is not None})
    zero = torch.zeros_like(z if y is None else y)
    return zero if y is None else y, zero if z is None else z


def _swapped(P: Projection) -> Projection:
    return lambda x: P(pair(x)[::-1])[::-1]
