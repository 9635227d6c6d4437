"""What can be seen of depth at a point: whether a chain is a depth cofiltration, and whether a depth is right."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ..machine import Machine, NotAMachine, Point, Projection, plus, transformed


def is_cofiltration(f: Machine, chain: Sequence[Projection], *, at: Point) -> bool:
    """Is X ⊇ V_0 ⊇ … ⊇ V_d = 0 a depth cofiltration of f, as far as the point `at` can tell.

    The chain is given by projections P_i onto V_i. Definition 2 by the derivative: Im f ⊆ V_0 is P_0 f = f, and
    (Df(at)) V_{i-1} ⊆ V_i is P_i Df P_{i-1} = Df P_{i-1}, tried on a random vector.
    """
    derivative = f.tangent(at)
    vector = _random(at)
    image = derivative.endofunction(vector)
    rounding = 100 * _epsilon(at) * max(_size(vector), _size(image), _size(f.endofunction(at)))

    def keeps(P: Projection, x: Point) -> bool:
        return _size(_minus(P(x), x)) <= rounding

    if not chain or _size(chain[-1](vector)) or not keeps(chain[0], f.endofunction(at)):
        return False
    return all(
        keeps(upper, lower(vector)) and keeps(lower, derivative.endofunction(upper(vector)))
        for upper, lower in pairwise(chain)
    )


def verify(machine: Machine, x0: Point, *, tolerance: float | None = None) -> None:
    """Raise `NotAMachine` unless, at x0, the depth sequence solves h = x0 + f(h) wherever it starts (Theorem 1).

    The residual is relative to the largest value, and its default tolerance eps^0.6 of the values' precision.
    """
    h = machine.resolvent(x0)
    elsewhere = machine.depth_sequence(x0, machine.endofunction(plus(h, _random(h))))[-1]
    scale, most = 1 + _size(h), _epsilon(h) ** 0.6 if tolerance is None else tolerance
    for what, other in (
        ("h - x0 - f(h)", plus(x0, machine.endofunction(h))),
        ("the end for another start", elsewhere),
    ):
        residual = _size(_minus(h, other)) / scale
        if not residual <= most:  # also for NaN
            depth = machine.depth_at(x0)
            raise NotAMachine(f"f is not of depth {depth} at x0: relative residual {residual:.2e} of {what}")


def _random(x: Point) -> Point:
    """A point of normal numbers, always the same, of the same kind as x; what is not of floating point is zero."""
    generator = torch.Generator().manual_seed(0)

    def normal(value: Tensor) -> Tensor:
        floats = value.is_floating_point()
        return torch.randn(value.shape, generator=generator).to(value) if floats else torch.zeros_like(value)

    return transformed(x, normal)


def _minus(x: Point, other: Point) -> Point:
    return plus(x, transformed(other, lambda value: -value if value.is_floating_point() else value))


def _values(x: Point) -> list[Tensor]:
    """Those of floating point."""
    found: list[Tensor] = []
    transformed(x, lambda value: found.append(value) or value)
    return [value for value in found if value.is_floating_point()]


def _epsilon(x: Point) -> float:
    return max((torch.finfo(value.dtype).eps for value in _values(x)), default=0.0)


def _size(x: Point) -> float:
    sizes = [value.abs().max() for value in _values(x) if value.numel()]
    return torch.stack(sizes).max().item() if sizes else 0.0  # unlike Python's, this maximum lets no NaN slip
