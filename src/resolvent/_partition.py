"""The ordered partition I_0 ⊔ … ⊔ I_n and which of its blocks feed which."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

Connections = tuple[tuple[bool, ...], ...]
"""A strictly lower triangular block matrix `[to][from]`."""


@dataclass(frozen=True, init=False)
class Partition:
    """Consecutive blocks I_0 ⊔ … ⊔ I_n of the given sizes.

    >>> Partition((2, 3)).blocks
    (slice(0, 2, None), slice(2, 5, None))
    """

    sizes: tuple[int, ...]

    def __init__(self, sizes: Sequence[int]):
        try:
            integers = tuple(operator.index(size) for size in sizes if not isinstance(size, bool))
        except TypeError:
            integers = None
        if integers is None or len(integers) < len(sizes):
            raise TypeError(f"sizes must be a sequence of integers, got {sizes!r}")
        if not integers or min(integers) < 1:
            raise ValueError(f"sizes must be one or more positive integers, got {sizes!r}")
        object.__setattr__(self, "sizes", integers)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def blocks(self) -> tuple[slice, ...]:
        ends = tuple(accumulate(self.sizes))
        return tuple(map(slice, (0, *ends), ends))

    def expand(self, connections: Connections) -> Tensor:
        """The block matrix as a mask over single indices."""
        sizes = torch.tensor(self.sizes, device="cpu")
        return torch.tensor(connections, device="cpu").repeat_interleave(sizes, 0).repeat_interleave(sizes, 1)


def block_matrix(
    connections: Literal["all", "sequential"] | Sequence[Sequence[bool]] | Tensor, partition: Partition
) -> Connections:
    """The connections as a matrix: True at `[i][j]` where block j feeds block i, which needs j < i."""
    n = len(partition)
    if isinstance(connections, str):
        named = {"all": lambda i, j: j < i, "sequential": lambda i, j: j == i - 1}
        if connections not in named:
            raise ValueError(
                f"connections={connections!r} is unknown: use {', '.join(map(repr, named))} "
                "or a boolean block matrix [to, from]"
            )
        return tuple(tuple(named[connections](i, j) for j in range(n)) for i in range(n))
    try:
        matrix = torch.as_tensor(connections, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"connections must be a boolean block matrix, got {connections!r}") from None
    if matrix.dtype != torch.bool:
        raise TypeError(f"connections must be boolean, got {matrix.dtype}")
    if matrix.shape != (n, n):
        raise ValueError(
            f"connections has shape {tuple(matrix.shape)}, {n} blocks need ({n}, {n}): sizes={partition.sizes}"
        )
    backward = [(i, j) for i, j in matrix.nonzero().tolist() if j >= i]
    if backward:
        i, j = backward[0]
        raise ValueError(
            f"connections[{i}, {j}] feeds block {j} into block {i}: only earlier blocks may feed later ones"
        )
    return tuple(map(tuple, matrix.tolist()))
