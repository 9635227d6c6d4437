"""The derivative of a structured machine at a point, and its dual: machines, and the same solve with slopes for σ."""

from typing import Any

from torch import Tensor

from .. import pytorch
from ..machine import Linear, Point, Projection, annihilators
from ..structure.sigma import SLOPE_AT, ZERO, Sigma
from ..sweep.explain import explain_points
from ..sweep.solve import solve


class Tangent(Linear):
    """dy = W dz + dy0, dz = σ'(y) ⊙ dy + dz0. The point y is looked at when it is used."""

    __slots__ = ("machine", "sigma", "system")

    def __init__(self, machine: Any, y: Tensor, value: Tensor | None):
        self.machine, self.system, self.sigma = machine, machine._system, Sigma(SLOPE_AT, y, value)

    @property
    def y(self) -> Any:
        return self.sigma.point

    def solve(self, dy0: Tensor | None = None, dz0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(dy, dz), of inputs with the channels of whole blocks; None is zero."""
        return solve(self.system, self.sigma, pytorch.weight_and_bias(self.machine)[0], None, dy0, dz0)

    def resolvent(self, x0: Point) -> Point:
        return self.solve(*x0)

    def endofunction(self, x: Point) -> Point:
        """(W dz, σ'(y) ⊙ dy) or, for the dual, (W* v, σ'(y) ⊙ u)."""
        y, z = self.machine._both(x)
        explain_points(self.system, self.machine.weight, dict(y=y) | {"the point y": self.y})
        Wz, _ = solve(self.system, ZERO, self.machine.weight, None, None, z)
        return Wz, self.sigma.with_slope(self.system.activations).point * y  # pyright: ignore  # there is one

    def depth_at(self, x: Point = None) -> int:
        return self.machine.depth_at(self.y)

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """That of the machine (Proposition 3)."""
        return self.machine.cofiltration(self.y)

    def dual(self, x: Point = None) -> "Dual":
        return Dual(self.machine, self.y, self.sigma.value)


class Dual(Tangent):
    """u = W* v + u0, v = σ'(y) ⊙ u + v0."""

    __slots__ = ()

    def __init__(self, machine: Any, y: Tensor, value: Tensor | None):
        self.machine, self.system, self.sigma = machine, machine._system.dual, Sigma(SLOPE_AT, y, value)

    def solve(self, u0: Tensor | None = None, v0: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(u, v), of cotangents with all channels, as `machine.placed` makes one of a block's; None is zero."""
        return solve(self.system, self.sigma, pytorch.weight_and_bias(self.machine)[0], None, u0, v0)

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """What annihilates the machine's, in which u belongs to z and v to y."""
        return [_swapped(P) for P in annihilators(self.machine.cofiltration(self.y))]

    def dual(self, x: Point = None) -> Tangent:  # pyright: ignore  # of the dual, the tangent
        return Tangent(self.machine, self.y, self.sigma.value)


def _swapped(P: Projection) -> Projection:
    return lambda x: P(x[::-1])[::-1]
