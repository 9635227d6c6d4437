"""Finite depth without named layers: nilpotent operators, functions of known depth, and depth cofiltrations."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ._sum import Machine, NotAMachine, Point

AnyPoint: TypeAlias = Any  # a tensor or a dict of tensors
Subspace = frozenset[str] | Mapping[str, Tensor]
"""The parts that a subspace keeps, whole or where a mask is True."""


class LinearMachine(nn.Module):
    """A nilpotent operator f on points (..., n), in any basis: R_f = id + f + f² + … + f^d.

    The depth d, with f^(d+1) = 0, comes from the chain of kernels 0 ⊂ ker f ⊂ ker f² ⊂ …, found by orthogonal
    deflation; singular values below `tolerance` times the largest count as zero.

    >>> LinearMachine(torch.tensor([[1.0, -1.0], [1.0, -1.0]])).depth
    1
    """

    def __init__(self, matrix: Tensor, *, tolerance: float | None = None):
        super().__init__()
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.is_floating_point():
            raise ValueError(
                f"matrix must be square and of floating point, got {tuple(matrix.shape)} of {matrix.dtype}"
            )
        self.matrix = matrix
        self.tolerance = 10 * len(matrix) * torch.finfo(matrix.dtype).eps if tolerance is None else tolerance
        self.kernels = _kernels(matrix.detach(), self.tolerance)
        """Orthonormal bases, as columns, of ker f, ker f², …; the last is all of X."""

    @property
    def depth(self) -> int:
        return max(0, len(self.kernels) - 1)

    def forward(self, x0: Tensor) -> Tensor:
        return self.resolvent(x0)

    def resolvent(self, x0: Tensor) -> Tensor:
        """h = x0 + f(x0 + f(x0 + …))."""
        h = x0
        for _ in range(self.depth):
            h = x0 + self.endofunction(h)
        return h

    def endofunction(self, x: Tensor) -> Tensor:
        if x.ndim < 1 or x.shape[-1] != len(self.matrix):
            raise ValueError(f"x has shape {tuple(x.shape)}, the machine needs (..., {len(self.matrix)})")
        return x @ self.matrix.mT

    @property
    def dual(self) -> "LinearMachine":
        return LinearMachine(self.matrix.mT, tolerance=self.tolerance)

    def extra_repr(self) -> str:
        return f"dimension={len(self.matrix)}, depth={self.depth}"


def _kernels(matrix: Tensor, tolerance: float) -> list[Tensor]:
    n = len(matrix)
    kernel, rest = matrix.new_zeros(n, 0), torch.eye(n, dtype=matrix.dtype, device=matrix.device)
    threshold = tolerance * torch.linalg.matrix_norm(matrix, 2) if n else 0
    kernels = []
    while rest.shape[1]:
        # f on X / ker f^i, in an orthonormal basis of the complement of ker f^i
        _, singular, V = torch.linalg.svd(rest.mT @ matrix @ rest)
        null = singular <= threshold
        if not null.any():
            raise NotAMachine(
                f"the operator is not nilpotent: on a quotient of dimension {len(singular)} it is invertible, "
                f"its smallest singular value {singular[-1]:.2e} is above {threshold:.2e}"
            )
        kernel, rest = torch.cat([kernel, rest @ V[null].mT], 1), rest @ V[~null].mT
        kernels.append(kernel)
    return kernels


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


def verify(machine: EndofunctionMachine, x0: AnyPoint, *, tolerance: float = 1e-6) -> None:
    """Raise `NotAMachine` unless, at x0, the depth sequence solves h = x0 + f(h) wherever it starts (Theorem 1)."""
    h = machine.resolvent(x0)
    generator = torch.Generator().manual_seed(0)
    noise = _map(h, lambda value: torch.randn(value.shape, generator=generator).to(value))
    elsewhere = machine.depth_sequence(x0, machine.endofunction(_add(h, noise)))[-1]
    scale = 1 + _size(h)
    for what, other in (("h - x0 - f(h)", _add(x0, machine.endofunction(h))), ("the end for another start", elsewhere)):
        residual = _size(_add(h, _map(other, torch.neg))) / scale
        if not residual <= tolerance:
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
    kept = {name: torch.tensor(True) for name in space} if isinstance(space, frozenset) else space
    nothing = torch.tensor(False)
    return {name: kept.get(name, nothing).to(value.device).expand(value.shape) for name, value in at.items()}


def _add(a: AnyPoint, b: AnyPoint) -> AnyPoint:
    if isinstance(a, Tensor):
        return a + b
    return {name: a[name] + b[name] if name in a and name in b else a.get(name, b.get(name)) for name in {**a, **b}}


def _map(x: AnyPoint, function: Callable[[Tensor], Tensor]) -> AnyPoint:
    return function(x) if isinstance(x, Tensor) else {name: function(value) for name, value in x.items()}


def _size(x: AnyPoint) -> float:
    return max((value.abs().max().item() for value in ([x] if isinstance(x, Tensor) else x.values())), default=0.0)
