"""Points as variables of the smallest numbers that know some derivatives: `rv.jet`, and what reads them at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import combinations_with_replacement
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ..pytorch import constant, is_compiling
from ..structure.jet import Jet
from ..structure.numbers import Numbers
from ..structure.partition import integer
from .algebra import Polynomial, basis, coordinates, products
from .language import operator, operators


@dataclass(frozen=True, repr=False)
class Derivatives(Numbers):
    """Numbers of which each is what an operator of the basis gives, of a function at a point."""

    names: str = ""
    basis: tuple[Polynomial, ...] = field(default=(), hash=False)

    def __repr__(self) -> str:
        return f"{self.size} numbers, which know {', '.join(map(self._text, self.basis))}"

    def read(self, text: str, coefficients: Tensor) -> Tensor:
        """A derivative, of coefficients along the first axis."""
        (first, c), *others = self.places(text)
        total = coefficients[first] if c == 1 else c * coefficients[first]
        for place, c in others:
            total = total + c * coefficients[place]
        return total

    @constant  # a compiler is not to trace how a text is read
    def places(self, text: str) -> tuple[tuple[int, float], ...]:
        """Which coefficients a derivative is made of."""
        if text not in self.programs:
            found = coordinates(operator(text, self.names), self.basis)
            if found is None:
                raise ValueError(f"{text!r} is not known to these {self}: ask rv.jet for it")
            self.programs[text] = tuple((place, float(c)) for place, c in found.items())
        return self.programs[text]

    @constant
    def variables(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]] | None:
        """(coefficients after the first, variables, what they are there); None if they are the variables in order."""
        key = "variables", count
        if key not in self.programs:
            linear = [
                (k - 1, monomial[0], float(c))
                for k, P in enumerate(self.basis)
                for monomial, c in P.items()
                if len(monomial) == 1
            ]
            in_order = linear == [(i, i, 1.0) for i in range(count)]
            self.programs[key] = None if in_order else tuple(zip(*linear, strict=True)) or ((), (), ())
        return self.programs[key]

    def _text(self, P: Polynomial) -> str:
        def term(monomial: tuple[int, ...], c: Fraction) -> str:
            letters = "".join(self.names[i] if self.names else f"∂{i}" for i in monomial)
            return letters if c == 1 and letters else f"{c} {letters}".strip()

        return " + ".join(term(*each) for each in sorted(P.items()))


@lru_cache(maxsize=256)
def smallest(operators: frozenset, names: str = "") -> Derivatives:
    """The smallest numbers that know these operators."""
    known = basis(operators)
    return Derivatives(len(known), products(known), names, known)


@lru_cache(maxsize=256)
def _named(derivatives: str | int, names: str) -> Derivatives:
    if isinstance(derivatives, str):
        asked: Any = operators(derivatives, names)
    else:
        asked = [{monomial: Fraction(1)} for monomial in combinations_with_replacement(range(len(names)), derivatives)]
    return smallest(frozenset(frozenset(P.items()) for P in asked), names)


@lru_cache(maxsize=256)
def _power_of_laplacian(power: int, dimension: int) -> Derivatives:
    """The numbers that know (Σ ∂_i²)^power."""
    P: dict[tuple[int, ...], Fraction] = {(): Fraction(1)}
    for _ in range(power):
        total: dict[tuple[int, ...], Fraction] = {}
        for monomial, c in P.items():
            for i in range(dimension):
                product = tuple(sorted((*monomial, i, i)))
                total[product] = total.get(product, Fraction(0)) + c
        P = total
    return smallest(frozenset([frozenset(P.items())]))


MADE = dict(named=_named, power_of_laplacian=_power_of_laplacian)
COMPILED = SimpleNamespace()
"""What compiled code computes with: it takes no object from a function that it does not trace, but from here."""


def _known(make: str, *arguments: Any) -> Derivatives:
    return getattr(COMPILED, _compiled(make, *arguments)) if is_compiling() else MADE[make](*arguments)


@constant
def _compiled(make: str, *arguments: Any) -> str:
    name = repr((make, *arguments))
    setattr(COMPILED, name, MADE[make](*arguments))
    return name


def jet(
    points: Tensor,
    derivatives: str | int,
    *,
    names: str,
    directions: Tensor | Sequence[Tensor] | Mapping[str, Tensor] | None = None,
) -> Jet:
    """The points as variables of the smallest numbers that know these derivatives, or all up to an order.

    `names` has one letter for each channel, in order: a point is a row of the last axis. Images and series, whose
    points have more axes, take `directions`, one for each name: the variables are steps along them.

    >>> p = jet(torch.tensor([[0.5, 2.0]]), "t, x, xx", names="tx")
    >>> u = p[:, 0].sin() * p[:, 1] ** 3
    >>> u["xx"] / u[""]
    tensor([1.5000])
    """
    _check(points)
    if not isinstance(names, str) or not names.isalpha() or len(set(names)) < len(names):
        raise ValueError(f"names must be different letters, one for each variable, got {names!r}")
    if directions is None and (points.ndim == 0 or points.shape[-1] != len(names)):
        raise ValueError(
            f"points of shape {tuple(points.shape)} need one name for each channel, the last axis: names={names!r}"
        )
    if not isinstance(derivatives, str):
        derivatives = integer("the order of derivatives", derivatives, minimum=1)
    along = None if directions is None else _along(points, directions, names)
    numbers = _known("named", derivatives, names)
    if numbers.real:
        raise ValueError(f"{derivatives!r} asks for no derivative: the value is f(points)")
    return _variables(points, numbers, along)


def derivatives(
    f: Callable[[Any], Any], points: Tensor, derivatives: str, *, names: str, directions: Any = None
) -> tuple[Tensor, ...]:
    """Each of the derivatives of f at the points, in their order, from one sweep; "1" is the value.

    >>> derivatives(torch.sin, torch.zeros(1, 1), "1, x, xxx", names="x")
    (tensor([[0.]]), tensor([[1.]]), tensor([[-1.]]))
    """
    if not isinstance(derivatives, str):
        raise TypeError(f"derivatives must be a text like 'x, xx', got {derivatives!r}")
    value = _image(f, jet(points, derivatives, names=names, directions=directions))
    return tuple(value[text] for text in derivatives.split(","))


def laplacian(
    f: Callable[[Any], Any], points: Tensor, *, samples: int | None = None, generator: torch.Generator | None = None
) -> Tensor:
    """Σ_i ∂²f / ∂x_i² over the channels of the points, from D + 2 numbers. A point is a row of the last axis.

    With `samples`, the mean over so many random directions of signs for each point, an estimate without bias.
    """
    _check(points)
    if samples is None:
        return _by_power(f, points, 1)
    samples = integer("samples", samples, minimum=1)
    signs = torch.randint(0, 2, (samples, *points.shape), generator=generator, device=points.device).to(points) * 2 - 1
    return _by_power(f, points, 1, signs / samples**0.5)


def biharmonic(f: Callable[[Any], Any], points: Tensor) -> Tensor:
    """Σ_ij ∂⁴f / ∂x_i² ∂x_j², the Laplacian of the Laplacian."""
    _check(points)
    return _by_power(f, points, 2)


def _by_power(f: Callable[[Any], Any], points: Tensor, power: int, along: Tensor | None = None) -> Tensor:
    if points.ndim == 0:
        raise ValueError("points have no axis: the last one is that of the variables")
    count = len(range(points.shape[-1] if along is None else len(along)))  # as below
    numbers = _known("power_of_laplacian", power, count)
    return _image(f, _variables(points, numbers, along)).coefficients[-1]  # the operator itself, of all the last


def _image(f: Callable[[Any], Any], point: Jet) -> Jet:
    value = f(point)
    if not isinstance(value, Jet):
        raise TypeError(f"f gave {type(value).__name__} for a jet: it must be made of functions that take one")
    return value


def _variables(points: Tensor, numbers: Derivatives, along: Tensor | None) -> Jet:
    count = points.shape[-1] if along is None else len(along)
    matrix = torch.eye(numbers.size - 1, count, dtype=points.dtype, device=points.device)
    variables = numbers.variables(len(range(count)))  # an int, also where a compiler has a symbol
    if variables is not None:
        rows, columns, values = variables
        matrix = torch.zeros_like(matrix)
        matrix[list(rows), list(columns)] = torch.tensor(values, dtype=points.dtype, device=points.device)
    if along is None:
        steps = matrix.expand(*points.shape[:-1], numbers.size - 1, count)
        return Jet(torch.cat([points.unsqueeze(-2), steps], -2).movedim(-2, 0), numbers)
    return Jet(torch.cat([points.unsqueeze(0), torch.tensordot(matrix, along, 1)]), numbers)


def _along(points: Tensor, directions: Any, names: str) -> Tensor:
    """One direction for each name, in their order."""
    if isinstance(directions, Mapping):
        if set(directions) != set(names):
            raise ValueError(f"directions are named {', '.join(directions)}, needed is one for each of names={names!r}")
        directions = [directions[name] for name in names]
    if not isinstance(directions, Tensor | list | tuple) or len(directions) != len(names):
        came = len(directions) if isinstance(directions, Sequence | Tensor) else type(directions).__name__
        raise ValueError(
            f"directions must be a list of {len(names)} tensors, one for each of names={names!r}, got {came}"
        )
    steps = []
    for name, d in zip(names, directions, strict=True):
        if not isinstance(d, Tensor) or d.dtype != points.dtype or d.device != points.device:
            came = f"{d.dtype} on {d.device}" if isinstance(d, Tensor) else type(d).__name__
            raise TypeError(f"the direction {name!r} is {came}, the points are {points.dtype} on {points.device}")
        try:
            steps.append(d.expand(points.shape))
        except RuntimeError:
            shapes = tuple(d.shape), tuple(points.shape)
            raise ValueError(f"the direction {name!r} has shape {shapes[0]}, the points have {shapes[1]}") from None
    return torch.stack(steps)


def _check(points: Any) -> None:
    if not isinstance(points, Tensor):
        raise TypeError(f"points must be a tensor, got {type(points).__name__}")
    if not points.is_floating_point():
        raise TypeError(f"points are {points.dtype}, derivatives need floating point: points.float()")
