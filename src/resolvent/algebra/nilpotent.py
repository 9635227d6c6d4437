"""Nilpotent operators: linear machines in any basis."""

import torch
from torch import Tensor, nn

from ..machine import Linear, NotAMachine, Point, Projection


class LinearMachine(Linear, nn.Module):
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
        self._depth = _depth(matrix.detach(), tolerance)

    def forward(self, x0: Tensor) -> Tensor:
        return self.resolvent(x0)

    def resolvent(self, x0: Tensor) -> Tensor:
        """h = x0 + f(x0 + f(x0 + …))."""
        self._check("x0", x0)
        return super().resolvent(x0)

    def endofunction(self, x: Tensor) -> Tensor:
        self._check("x", x)
        return x @ self.matrix.mT

    def depth_at(self, x: Point = None) -> int:
        return self._depth

    def dual(self, x: Point = None) -> "LinearMachine":
        return LinearMachine(self.matrix.mT, tolerance=self.tolerance)

    def kernels(self) -> list[Tensor]:
        """Orthonormal bases, as columns, of ker f, ker f², …, ker f^(d+1) = X: the cofiltration, read backwards."""
        bases = []
        for k in range(1, self.depth + 2):
            _, singular, V = torch.linalg.svd(torch.linalg.matrix_power(self.matrix, k))
            threshold = 10 * len(singular) * torch.finfo(singular.dtype).eps * singular[:1]
            bases.append(V[singular <= threshold].mT if k <= self.depth else V.mT)
        return bases

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """V_i = ker f^(d-i), onto which these project at right angles."""
        bases = [*reversed(self.kernels()[: self.depth]), self.matrix.new_zeros(len(self.matrix), 0)]
        return [_onto(basis) for basis in bases]

    def extra_repr(self) -> str:
        return f"dimension={len(self.matrix)}, depth={self.depth}"

    def _check(self, name: str, x: Tensor) -> None:
        if x.ndim < 1 or x.shape[-1] != len(self.matrix):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, the machine needs (..., {len(self.matrix)})")


def _onto(basis: Tensor) -> Projection:
    return lambda x: x @ basis @ basis.mT


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
