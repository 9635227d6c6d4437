"""The derivative of a structured machine at a point, and its dual."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ._activation import Slope
from ._plan import Plan
from ._solve import solve

Point = Float[Tensor, "..."]


@dataclass(eq=False)
class Derivative:
    """A structured machine's derivative at a point, or its dual: the same solve, with slopes for σ.

    The point is checked when it is used.
    """

    machine: Any  # the structured machine
    y: Tensor
    z: Tensor | None = None

    @property
    def slope(self) -> Tensor:
        return self.machine.activation.slope(self.y)

    def endofunction(self, y: Point, z: Point) -> tuple[Point, Point]:
        """(W dz, σ'(y) ⊙ dy) of a tangent (dy, dz) or, for the dual, (W* v, σ'(y) ⊙ u) of a cotangent (u, v)."""
        weight, y, z, _ = self.machine._points(**{"y": y, "z": z, "the point y": self.y})
        Wz, _ = solve(self.machine.operator, self._plan, None, weight, None, z)
        return Wz, self.slope * y

    @property
    def _plan(self) -> Plan:
        plan = self.machine._plan(self.y)
        return plan.dual if isinstance(self, Dual) else plan

    def _solve(self, names: tuple[str, str], y0: Point | None, z0: Point | None) -> tuple[Point, Point]:
        machine, sigma = self.machine, Slope(self.machine.activation, self.y, self.z)
        done = machine._at_once(sigma, y0, z0, transposed=type(self) is Dual)
        if done is not None:
            return done
        inputs, known = dict(zip(names, (y0, z0), strict=True)), {} if self.z is None else {"z": self.z}
        weight, y0, z0, *point = machine._points(**inputs, y=self.y, **known)
        return solve(machine.operator, self._plan, Slope(machine.activation, *point), weight, y0, z0)


class Tangent(Derivative):
    """dy = W dz + dy0, dz = σ'(y) ⊙ dy + dz0."""

    @property
    def dual(self) -> "Dual":
        return Dual(self.machine, self.y, self.z)

    def solve(self, dy0: Point | None = None, dz0: Point | None = None) -> tuple[Point, Point]:
        """(dy, dz); None is zero."""
        return self._solve(("dy0", "dz0"), dy0, dz0)


class Dual(Derivative):
    """u = W* v + u0, v = σ'(y) ⊙ u + v0."""

    @property
    def dual(self) -> Tangent:
        return Tangent(self.machine, self.y, self.z)

    def solve(self, u0: Point | None = None, v0: Point | None = None) -> tuple[Point, Point]:
        """(u, v); None is zero."""
        return self._solve(("u0", "v0"), u0, v0)
