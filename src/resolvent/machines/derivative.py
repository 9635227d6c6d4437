"""The derivative of a structured machine at a point, and its dual."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from ..structure.activation import Slope
from ..sweep.plan import Plan
from ..sweep.solve import solve

Point = Float[Tensor, "..."]


@dataclass(eq=False, slots=True)
class Derivative(Slope):
    """A structured machine's derivative at a point, or its dual: the same solve, with slopes for σ.

    The point is checked when it is used.
    """

    machine: Any  # the structured machine

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
        """The solution, of inputs that may be wrong, cast or transformed."""
        machine, inputs = self.machine, dict(zip(names, (y0, z0), strict=True))
        known = {} if self.z is None else {"z": self.z}
        weight, y0, z0, y, *z = machine._points(**inputs, y=self.y, **known)
        slope = Slope(self.activations, y, z[0] if z else None)
        return solve(machine.operator, self._plan, slope, weight, y0, z0)


class Tangent(Derivative):
    """dy = W dz + dy0, dz = σ'(y) ⊙ dy + dz0."""

    __slots__ = ()

    @property
    def dual(self) -> "Dual":
        return Dual(self.activations, self.y, self.z, self.machine)

    def solve(self, dy0: Point | None = None, dz0: Point | None = None) -> tuple[Point, Point]:
        """(dy, dz); None is zero."""
        done = self.machine._at_once(self, dy0, dz0)
        return self._solve(("dy0", "dz0"), dy0, dz0) if done is None else done


class Dual(Derivative):
    """u = W* v + u0, v = σ'(y) ⊙ u + v0."""

    __slots__ = ()

    @property
    def dual(self) -> Tangent:
        return Tangent(self.activations, self.y, self.z, self.machine)

    def solve(self, u0: Point | None = None, v0: Point | None = None) -> tuple[Point, Point]:
        """(u, v); None is zero."""
        done = self.machine._at_once(self, u0, v0, transposed=True)
        return self._solve(("u0", "v0"), u0, v0) if done is None else done
