"""Numbers that a machine may compute with besides the reals, and σ over them.

A machine over numbers has one axis for their coefficients, directly before the event: (members, batch, numbers, event).
W acts on each coefficient alone; σ, slopes and the bias know the multiplication.
"""

from dataclasses import dataclass, field
from math import factorial

import torch
import torch.nn.functional as F
from torch import Tensor

from .activation import Activation


@dataclass(frozen=True)
class Numbers:
    """A commutative algebra with a basis 1, e_1, …, e_m of which the e's are nilpotent: e_i e_j = Σ_k c e_k.

    `table` has the (i, j, k, c); products of more than `order` of the e's vanish. The reals have no axis.

    >>> Numbers(((0, 0, 0, 1.0), (0, 1, 1, 1.0), (1, 0, 1, 1.0)), order=1).size  # a + b ε with ε² = 0
    2
    """

    table: tuple[tuple[int, int, int, float], ...]
    order: int

    real: bool = field(init=False, compare=False)
    size: int = field(init=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "real", not self.order)
        object.__setattr__(self, "size", 1 + max(k for _, _, k, _ in self.table))

    def times(self, a: Tensor, b: Tensor, axis: int) -> Tensor:
        """a b."""
        return a * b if self.real else self._sum(axis, [(k, c, a, i, b, j) for i, j, k, c in self.table])

    def adjoint(self, a: Tensor, u: Tensor, axis: int) -> Tensor:
        """The adjoint of b ↦ a b, at u."""
        return a * u if self.real else self._sum(axis, [(j, c, a, i, u, k) for i, j, k, c in self.table])

    def image(self, slope: Tensor, y: Tensor, axis: int, transposed: bool) -> Tensor:
        """What a slope makes of y: slope y or, in the dual machine, the adjoint of that."""
        return (self.adjoint if transposed else self.times)(slope, y, axis)

    def cotangent(self, u: Tensor, y: Tensor, axis: int, transposed: bool) -> Tensor:
        """What a cotangent u of that image brings to the slope; as a b = b a, another adjoint."""
        return self.adjoint(*((u, y) if transposed else (y, u)), axis)

    def embedded(self, x: Tensor, axis: int) -> Tensor:
        """Reals as numbers, in an axis of their own."""
        return x if self.real else F.pad(x.unsqueeze(axis), (0, 0) * (-1 - axis) + (0, self.size - 1))

    def extended(self, activation: Activation, y: Tensor, axis: int, order: int = 0) -> Tensor:
        """σ(a + n) = Σ_j σ^(j)(a) n^j / j! of y = a + n; or, in place of σ, its derivative of an order."""
        if self.real:
            return activation.derivative(order)(y)
        a, ones = y.narrow(axis, 0, 1), torch.ones_like(y)
        nilpotent = torch.cat([torch.zeros_like(a), y.narrow(axis, 1, self.size - 1)], axis)
        power = torch.cat([ones.narrow(axis, 0, 1), torch.zeros_like(nilpotent.narrow(axis, 1, self.size - 1))], axis)
        total = torch.zeros_like(y)
        for j in range(self.order + 1):
            total = total + activation.derivative(order + j)(a) * power / factorial(j)
            power = self.times(power, nilpotent, axis)
        return total

    def _sum(self, axis: int, terms: list[tuple[int, float, Tensor, int, Tensor, int]]) -> Tensor:
        parts = [torch.zeros_like(terms[0][4].select(axis, 0)) for _ in range(self.size)]
        for to, c, a, i, b, j in terms:
            parts[to] = parts[to] + c * a.select(axis, i) * b.select(axis, j)
        return torch.stack(parts, axis)


REALS = Numbers(((0, 0, 0, 1.0),), order=0)
