"""Finite depth without named layers: nilpotent operators, functions of known depth, and depth cofiltrations."""

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .sum import Machine, NotAMachine, Point

AnyPoint: TypeAlias = Any  # a tensor or a dict of tensors
Subspace = Set[str] | Mapping[str, Tensor]
"""The parts that a subspace keeps, whole or where a mask is True."""


class LinearMachine(nn.Module):
    """A nilpotent operator f on points (..., n), in any basis: R_f = id + f + f² + … + f^d.

    The depth d is the first with f^(d+1) = 0, where the chain 0 ⊆ ker f ⊆ ker f² ⊆ … reaches all of X. A power counts
    as zero if each entry is below `tolerance` times the same entry of |f|^(d+1), which is what rounding can explain at
    any scale, and if it is negligible beside |f| |f^d|.

    >>> LinearMachine(torch.tensor([[1.0, -1.0], [1.0, -1.0]])).depth
    1
    """

    matrix: Tensor

    def __init__(self, matrix: Tensor, *, tolerance: float | None = None):
        super().__init__()
        if not isinstance(matrix, Tensor):
            raise TypeError(f"matrix must be a tensor, got {type(matrix).__name__}")
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.is_floating_point():
            raise ValueError(
                f"matrix must be square and of floating point, got {tuple(matrix.shape)} of {matrix.dtype}"
            )
        if isinstance(matrix, nn.Parameter):
            self.matrix = matrix
        else:
            self.register_buffer("matrix", matrix)
        self.tolerance = tolerance
        self.depth = _depth(matrix.detach(), tolerance)

    def forward(self, x0: Tensor) -> Tensor:
        return self.resolvent(x0)

    def resolvent(self, x0: Tensor) -> Tensor:
        """h = x0 + f(x0 + f(x0 + …))."""
        self._check("x0", x0)
        h = x0
        for _ in range(self.depth):
            h = x0 + self.endofunction(h)
        return h

    def endofunction(self, x: Tensor) -> Tensor:
        self._check("x", x)
        return x @ self.matrix.mT

    @property
    def dual(self) -> "LinearMachine":
        return LinearMachine(self.matrix.mT, tolerance=self.tolerance)

    def kernels(self) -> list[Tensor]:
        """Orthonormal bases, as columns, of ker f, ker f², …, ker f^(d+1) = X: the cofiltration, read backwards."""
        bases = []
        for k in range(1, self.depth + 2):
            _, singular, V = torch.linalg.svd(torch.linalg.matrix_power(self.matrix, k))
            threshold = 10 * len(singular) * torch.finfo(singular.dtype).eps * singular[:1]
            bases.append(V[singular <= threshold].mT if k <= self.depth else V.mT)
        return bases

    def extra_repr(self) -> str:
        return f"dimension={len(self.matrix)}, depth={self.depth}"

    def _check(self, name: str, x: Tensor) -> None:
        if x.ndim < 1 or x.shape[-1] != len(self.matrix):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, the machine needs (..., {len(self.matrix)})")


def _depth(matrix: Tensor, tolerance: float | None) -> int:
    n, eps = len(matrix), torch.finfo(matrix.dtype).eps
    power = bound = torch.eye(n, dtype=matrix.dtype, device=matrix.device)
    excess = torch.zeros(())
    for d in range(n + 1):
        before, power, bound = power, power @ matrix, bound @ matrix.abs()
        if not bound.any():
            return d
        explained = (10 * n * (d + 1) * eps if tolerance is None else tolerance) * bound
        negligible = max(eps**0.4, tolerance or 0) * (before.abs().max() * matrix.abs().sum(1).max())
        excess = power.abs().max() / negligible
        if (power.abs() <= explained).all() and excess <= 1:
            return d
    raise NotAMachine(
        f"the operator is not nilpotent: its power {n + 1} has entries up to {power.abs().max():.2e}, "
        f"{excess:.1e} times what would be negligible beside the power before"
    )


class EndofunctionMachine(nn.Module):
    """Any f of known depth d, on tensors or on dicts of tensors, solved by its depth sequence h_i = x0 + f(h_{i-1}).

    >>> f = EndofunctionMachine(lambda x: torch.stack([torch.zeros_like(x[0]), x[0].sin()]), depth=1)
    >>> f(torch.tensor([0.5, 2.0]))
    tensor([0.5000, 2.4794])
    """

    def __init__(self, fn: Callable[[AnyPoint], AnyPoint], *, depth: int):
        super().__init__()
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise ValueError(f"depth must be an integer of at least 0, got {depth!r}")
        self.fn = fn
        self.depth = depth

    def forward(self, x0: AnyPoint) -> AnyPoint:
        return self.resolvent(x0)

    def endofunction(self, x: AnyPoint) -> AnyPoint:
        return self.fn(x)

    def resolvent(self, x0: AnyPoint) -> AnyPoint:
        return self.depth_sequence(x0)[-1]

    def depth_sequence(self, x0: AnyPoint, start: AnyPoint | None = None) -> list[AnyPoint]:
        """h_0 = x0 + φ, …, h_d for a start φ in the image of f; none means 0."""
        states = [x0 if start is None else _add(x0, start)]
        for _ in range(self.depth):
            states.append(_add(x0, self.fn(states[-1])))
        return states


def verify(machine: EndofunctionMachine, x0: AnyPoint, *, tolerance: float | None = None) -> None:
    """Raise `NotAMachine` unless, at x0, the depth sequence solves h = x0 + f(h) wherever it starts (Theorem 1).

    The residual is relative to the largest value, and its default tolerance eps^0.6 of the values' precision.
    """
    h = machine.resolvent(x0)
    values = [h] if isinstance(h, Tensor) else h.values()
    rounding = max((torch.finfo(v.dtype).eps ** 0.6 for v in values if v.is_floating_point()), default=0.0)
    generator = torch.Generator().manual_seed(0)
    noise = _map(h, lambda value: torch.randn(value.shape, generator=generator).to(value))
    elsewhere = machine.depth_sequence(x0, machine.endofunction(_add(h, noise)))[-1]
    scale = 1 + _size(h)
    for what, other in (("h - x0 - f(h)", _add(x0, machine.endofunction(h))), ("the end for another start", elsewhere)):
        residual = _size(_add(h, _map(other, torch.neg))) / scale
        if not residual <= (rounding if tolerance is None else tolerance):  # also for NaN
            raise NotAMachine(f"f is not of depth {machine.depth} at x0: relative residual {residual:.2e} of {what}")


def is_cofiltration(f: Any, chain: Sequence[Subspace], *, at: Mapping[str, Tensor]) -> bool:
    """Is X ⊇ V_0 ⊇ … ⊇ V_d = 0 a depth cofiltration of f, as far as the point `at` can tell.

    Definition 2 by the derivative: Im f ⊆ V_0 and (Df(at)) V_{i-1} ⊆ V_i, tried on a random vector of each V_{i-1}.
    f is a sum or a structured machine; for the latter the parts are "y" and "z", kept where their masks are True.
    """
    if isinstance(f, Machine):
        function, derivative = f.endofunction, f.tangent(at).endofunction
    else:
        y, tangent = at["y"], f.tangent(at["y"])

        def function(x: Point) -> dict[str, Tensor]:
            return dict(zip("yz", f.endofunction(x["y"], x["z"]), strict=True))

        def derivative(x: Point) -> dict[str, Tensor]:
            zero = torch.zeros_like(y)
            return dict(zip("yz", tangent.endofunction(x.get("y", zero), x.get("z", zero)), strict=True))

    whole = {name: torch.ones_like(value, dtype=torch.bool) for name, value in at.items()}
    masks = [_masks(space, at) for space in chain]
    shrinking = all((~upper[n] & lower[n]).any() == 0 for upper, lower in pairwise([whole, *masks]) for n in at)
    if not masks or not shrinking or any(mask.any() for mask in masks[-1].values()):
        return False
    generator = torch.Generator().manual_seed(0)

    def vector_of(space: dict[str, Tensor]) -> dict[str, Tensor]:
        drawn = {n: torch.randn(at[n].shape, generator=generator).to(at[n]) for n in at if space[n].any()}
        return {name: value * space[name] for name, value in drawn.items()}

    def inside(x: Point, space: dict[str, Tensor]) -> bool:
        return all(bool((value[~space[name]] == 0).all()) for name, value in x.items())

    return inside(function(at), masks[0]) and all(
        inside(derivative(vector_of(upper)), lower) for upper, lower in pairwise(masks)
    )


def _masks(space: Subspace, at: Point) -> dict[str, Tensor]:
    kept = {name: torch.tensor(True) for name in space} if isinstance(space, Set) else space
    nothing = torch.tensor(False)
    return {name: kept.get(name, nothing).to(value.device).expand(value.shape) for name, value in at.items()}


def _add(x: AnyPoint, image: AnyPoint, where: str = "") -> AnyPoint:
    if isinstance(x, Tensor):
        if x.shape != image.shape:
            came, needed = tuple(image.shape), tuple(x.shape)
            raise ValueError(f"f must map X to X, but gives {came}{where} at a point of shape {needed}")
        return x + image
    both = x.keys() & image.keys()
    return {**x, **image, **{name: _add(x[name], image[name], f" in {name}") for name in both}}


def _map(x: AnyPoint, function: Callable[[Tensor], Tensor]) -> AnyPoint:
    return function(x) if isinstance(x, Tensor) else {name: function(value) for name, value in x.items()}


def _size(x: AnyPoint) -> float:
    sizes = [value.abs().max() for value in ([x] if isinstance(x, Tensor) else x.values()) if value.numel()]
    return torch.stack(sizes).max().item() if sizes else 0.0  # unlike Python's, this maximum lets no NaN slip
