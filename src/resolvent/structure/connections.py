"""Which blocks feed which: where W is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .partition import Partition, integer

BlockMatrix = tuple[tuple[bool, ...], ...]
"""True at `[i][j]` where block j feeds block i."""

ConnectionsLike = (
    Literal["all", "sequential", "recurrent"]
    | Sequence[Sequence[bool]]
    | Sequence[Sequence[Sequence[bool]]]
    | Tensor
    | Sequence[Tensor]
)


@dataclass(frozen=True)
class Connections:
    """A block matrix for each lag: where W is read. Dense and convolutional machines have lag 0 alone.

    An edge at lag τ goes strictly forward for every t when it goes to a later block or, for τ ≥ time_block, anywhere.
    """

    matrices: tuple[BlockMatrix, ...]
    time_block: int = 1

    def __post_init__(self):
        integer("time_block", self.time_block, minimum=1)  # at 0, no lag would have to go forward
        made = {id(matrix): tuple(tuple(map(bool, row)) for row in matrix) for matrix in self.matrices}
        object.__setattr__(self, "matrices", tuple(made[id(matrix)] for matrix in self.matrices))
        for lag, matrix in enumerate(self.matrices[: self.time_block]):
            for i, row in enumerate(matrix):
                if any(row[i:]):
                    j, lags = row.index(True, i), len(self.matrices) > 1
                    raise ValueError(
                        f"connections[{f'{lag}, ' * lags}{i}, {j}] feeds block {j} into block {i}: only earlier "
                        f"blocks may feed later ones{f' at lags below time_block={self.time_block}' * lags}"
                    )

    @property
    def lags(self) -> int:
        """The longest one."""
        return len(self.matrices) - 1

    def expand(self, partition: Partition) -> Tensor:
        """The mask `[lag, out, in]` over single channels."""
        sizes = torch.tensor(partition.sizes, device="cpu")
        return torch.tensor(self.matrices, device="cpu").repeat_interleave(sizes, 1).repeat_interleave(sizes, 2)


def connect(connections: ConnectionsLike, partition: Partition, lags: int = 0, time_block: int = 1) -> Connections:
    """The connections by name, from one block matrix `[to, from]` or, with lags, from one per lag.

    "all" are all that go strictly forward. "sequential": each block feeds the next one and, at lags from `time_block`
    on, itself. "recurrent": each feeds all later ones and, at those lags, only hidden blocks feed themselves. Of a
    single matrix, the lags below `time_block` read only the part that goes to later blocks.
    """
    n = len(partition)
    if isinstance(connections, str):
        earlier, itself = torch.ones(n, n, dtype=torch.bool, device="cpu").tril(-1), torch.eye(n, device="cpu") > 0
        named = {"all": (earlier, torch.ones_like(earlier)), "sequential": (itself.roll(1, 0) & earlier, itself)}
        if lags:
            hidden = itself.clone()
            hidden[[0, -1]] = False  # nothing feeds back from the output or into the input
            named["recurrent"] = (earlier, hidden)
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
