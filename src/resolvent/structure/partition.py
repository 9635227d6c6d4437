"""The ordered partition I_0 ⊔ … ⊔ I_n and which of its blocks feed which."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

BlockMatrix = tuple[tuple[bool, ...], ...]
"""True at `[i][j]` where block j feeds block i."""

ConnectionsLike = (
    Literal["all", "sequential"]
    | Sequence[Sequence[bool]]
    | Sequence[Sequence[Sequence[bool]]]
    | Tensor
    | Sequence[Tensor]
)


def integer(name: str, value: int, minimum: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return operator.index(value)


def integers(name: str, values: Sequence[int], minimum: int = 1) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of integers, got {values!r}")
    numbers = tuple(integer(f"each of {name}", value, minimum) for value in values)
    if not numbers:
        raise ValueError(f"{name} is empty: at least one integer is needed")
    return numbers


@dataclass(frozen=True, init=False)
class Partition:
    """Consecutive blocks I_0 ⊔ … ⊔ I_n of the given sizes.

    >>> Partition((2, 3)).blocks
    (slice(0, 2, None), slice(2, 5, None))
    """

    sizes: tuple[int, ...]
    total: int = field(init=False, repr=False, compare=False)
    _hash: int = field(init=False, repr=False, compare=False)

    def __init__(self, sizes: Sequence[int]):
        object.__setattr__(self, "sizes", integers("sizes", sizes))
        # both asked for in every call
        object.__setattr__(self, "total", sum(self.sizes))
        object.__setattr__(self, "_hash", hash(self.sizes))

    def __hash__(self) -> int:
        return self._hash

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def blocks(self) -> tuple[slice, ...]:
        ends = tuple(accumulate(self.sizes))
        return tuple(map(slice, (0, *ends), ends))


@dataclass(frozen=True)
class Connections:
    """A block matrix for each lag: where W is read. Dense and convolutional machines have lag 0 alone.

    An edge at lag τ goes strictly forward for every t when it goes to a later block or, for τ ≥ time_block, anywhere.
    """

    matrices: tuple[BlockMatrix, ...]
    time_block: int = 1
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(self, "_hash", hash((self.matrices, self.time_block)))  # long lags make it costly

    def __hash__(self) -> int:
        return self._hash

    def expand(self, partition: Partition) -> Tensor:
        """The mask `[lag, out, in]` over single channels."""
        sizes = torch.tensor(partition.sizes, device="cpu")
        return torch.tensor(self.matrices, device="cpu").repeat_interleave(sizes, 1).repeat_interleave(sizes, 2)


def connect(connections: ConnectionsLike, partition: Partition, lags: int = 0, time_block: int = 1) -> Connections:
    """The connections by name, from one block matrix `[to, from]` or, with lags, from one per lag.

    Of a single matrix, the lags below `time_block` read only the part that goes to later blocks.
    """
    n = len(partition)
    if isinstance(connections, str):
        earlier, itself = torch.ones(n, n, dtype=torch.bool, device="cpu").tril(-1), torch.eye(n, device="cpu") > 0
        named = {"all": (earlier, torch.ones_like(earlier)), "sequential": (itself.roll(1, 0) & earlier, itself)}
        if connections not in named:
            raise ValueError(
                f"connections={connections!r} is unknown: use {', '.join(map(repr, named))} "
                "or a boolean block matrix [to, from]"
            )
        matrix = torch.stack([named[connections][lag >= time_block] for lag in range(lags + 1)])
    else:
        matrix = _checked(connections, partition, lags)
        if matrix.ndim == 2:
            long = lags >= time_block
            matrix = torch.stack([matrix.tril(-1) if long and lag < time_block else matrix for lag in range(lags + 1)])
        for lag, i, j in matrix[:time_block].nonzero().tolist():
            if j >= i:
                raise ValueError(
                    f"connections[{f'{lag}, ' if lags else ''}{i}, {j}] feeds block {j} into block {i}: only earlier "
                    "blocks may feed later ones" + (f" at lags below time_block={time_block}" if lags else "")
                )
    matrices: dict[BlockMatrix, BlockMatrix] = {}  # lags that are connected alike share one matrix
    rows = (tuple(map(tuple, lag)) for lag in matrix.tolist())
    return Connections(tuple(matrices.setdefault(lag, lag) for lag in rows), time_block)


def _checked(connections: Sequence | Tensor, partition: Partition, lags: int) -> Tensor:
    n = len(partition)
    try:
        per_lag = not isinstance(connections, Tensor) and all(isinstance(matrix, Tensor) for matrix in connections)
        matrix = torch.stack(list(connections)) if per_lag else torch.as_tensor(connections)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"connections must be a boolean block matrix, got {connections!r}") from None
    if matrix.dtype != torch.bool:
        raise TypeError(f"connections must be boolean, got {matrix.dtype}")
    if matrix.shape not in ((n, n), (lags + 1, n, n)):
        raise ValueError(
            f"connections has shape {tuple(matrix.shape)}, {n} blocks need ({n}, {n})"
            + (f" or, with lags={lags}, ({lags + 1}, {n}, {n})" if lags else "")
            + f": sizes={partition.sizes}"
        )
    return matrix.cpu()
