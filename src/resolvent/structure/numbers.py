"""Numbers that a machine may compute with besides the reals, and σ over them.

A machine over numbers has one axis for their coefficients, directly before the event: (members, batch, numbers, event).
W acts on each coefficient alone; σ, slopes and the bias know the multiplication.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..pytorch import constant
from .activation import Activation


class Term(NamedTuple):
    """One of the terms of a product: the coefficient i of one factor times j of the other brings c times it to k."""

    i: int
    j: int
    k: int
    c: int | float | Fraction


class Terms(NamedTuple):
    """The terms of a product, as columns."""

    i: tuple[int, ...]
    j: tuple[int, ...]
    k: tuple[int, ...]
    c: tuple[float, ...]

    @classmethod
    def of(cls, terms: Iterable[Term]) -> "Terms":
        return cls(*zip(*((*places, float(c)) for *places, c in terms), strict=True)) if terms else cls((), (), (), ())


@dataclass(frozen=True)
class Numbers:
    """A commutative algebra with a basis 1, e_1, …, e_m of which the e's are nilpotent: e_i e_j = Σ_k c e_k.

    `products` has the terms with i, j > 0. The reals have no e's, and no axis.

    >>> dual = Numbers(2)  # a + b ε with ε² = 0
    >>> dual.times(torch.tensor([2.0, 1.0]), torch.tensor([3.0, 5.0]), axis=-1)
    tensor([ 6., 13.])
    """

    size: int
    products: tuple[Term, ...] = ()

    real: bool = field(init=False, compare=False, repr=False)
    order: int = field(init=False, compare=False, repr=False)
    """Products of more e's than this vanish."""
    powers: tuple[Terms, ...] = field(init=False, compare=False, repr=False)
    """n², n³, … of a nilpotent n, each as a product of the power before it and n."""
    forward: Terms = field(init=False, compare=False, repr=False)
    """The products of nilpotents, as columns."""
    backward: Terms = field(init=False, compare=False, repr=False)
    """Their adjoints."""
    programs: dict[Any, Any] = field(init=False, compare=False, repr=False, default_factory=dict)
    """What executors made of it, each under a key of its own."""

    def __post_init__(self):
        powers, power = [], [Term(i, j, k, c * (1 + (i < j))) for i, j, k, c in self.products if i <= j]
        while power:
            powers.append(Terms.of(power))
            if len(powers) == self.size:
                raise ValueError("these numbers are not nilpotent: no power of the e's vanishes")
            power = [term for term in self.products if term[0] in powers[-1].k]
        facts = dict(
            real=self.size == 1,
            order=0 if self.size == 1 else len(powers) + 1,
            powers=tuple(powers),
            forward=Terms.of(self.products),
            backward=Terms.of([Term(i, k, j, c) for i, j, k, c in self.products]),
        )
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def times(self, a: Tensor, b: Tensor, axis: int) -> Tensor:
        """a b."""
        if self.real:
            return a * b
        (a0, m), (b0, n) = self._parts(a, axis), self._parts(b, axis)
        return torch.cat([a0 * b0, a0 * n + b0 * m + self._sum(self.forward, a, b, axis)], axis)

    def adjoint(self, a: Tensor, u: Tensor, axis: int) -> Tensor:
        """The adjoint of b ↦ a b, at u."""
        if self.real:
            return a * u
        (a0, _), (_, w) = self._parts(a, axis), self._parts(u, axis)
        return torch.cat([(a * u).sum(axis, keepdim=True), a0 * w + self._sum(self.backward, a, u, axis)], axis)

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
        """σ(y) or, with order 1, σ'(y)."""
        if self.real:
            return (activation.slope if order else activation.function)(y)
        series = activation.series(y.narrow(axis, 0, 1), self.order + order)
        if order:
            series = [c if j == 0 else c * (j + 1) for j, c in enumerate(series[1:])]
        return self.composed(series, y, axis)

    def composed(self, series: Sequence[Tensor], y: Tensor, axis: int) -> Tensor:
        """σ(a + n) = Σ_j σ^(j)(a) / j! n^j of y = a + n, of the series of σ at a, which has one number on the axis."""
        n = power = self._parts(y, axis)[1]
        total = series[1] * n
        for terms, c in zip(self.powers, series[2:], strict=True):
            power = self._sum(terms, F.pad(power, (0, 0) * (-1 - axis) + (1, 0)), y, axis)
            total = total + c * power
        return torch.cat([series[0], total], axis)

    def __deepcopy__(self, memo: Any) -> "Numbers":
        return self  # which nothing changes

    @constant  # compiled code carries them so
    def serialized(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """All of it, as integers and factors."""
        return (self.size, *chain.from_iterable(term[:3] for term in self.products)), self.forward.c

    def read(self, text: str, coefficients: Tensor) -> Tensor:
        """A derivative by its name, where the numbers have names."""
        raise ValueError(f"{text!r} is no derivative that {self} have a name for")

    def _parts(self, a: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Its real and its nilpotent part."""
        return a.narrow(axis, 0, 1), a.narrow(axis, 1, self.size - 1)

    def _sum(self, terms: Terms, a: Tensor, b: Tensor, axis: int) -> Tensor:
        """The e's of a product of these terms."""
        shape = list(torch.broadcast_shapes(a.shape, b.shape))
        shape[axis] = self.size - 1
        zero = torch.zeros(shape, dtype=torch.promote_types(a.dtype, b.dtype), device=a.device)
        if not terms.k:
            return zero
        i, j, k = (torch.tensor(places, device=a.device) for places in (terms.i, terms.j, terms.k))
        c = torch.tensor(terms.c, dtype=a.dtype, device=a.device).reshape(-1, *(1,) * (-1 - axis))
        return zero.index_add(axis, k - 1, a.index_select(axis, i) * b.index_select(axis, j) * c)


REALS = Numbers(1)


@lru_cache(maxsize=256)
def from_serialized(integers: tuple[int, ...], factors: tuple[float, ...]) -> Numbers:
    """The numbers that `Numbers.serialized` wrote."""
    size, *places = integers
    columns = zip(places[::3], places[1::3], places[2::3], factors, strict=True)
    return Numbers(size, tuple(Term(*column) for column in columns)) if size > 1 else REALS
