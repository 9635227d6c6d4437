"""The pointwise σ of a machine: one activation for each block."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn

from .activation import ACTIVATIONS, Activation, Pointwise, as_activation
from .numbers import REALS, Numbers
from .partition import Partition


def activations_of(
    activation: str | Pointwise | nn.Module | Sequence[str | Pointwise | nn.Module],
    partition: Partition,
    channel_axis: int,
    event_ndim: int,
) -> "Activations":
    """One activation for all blocks, or a list with one for each."""
    if not isinstance(activation, Sequence) or isinstance(activation, str):
        return Activations((as_activation(activation),) * len(partition), partition, channel_axis, event_ndim)
    if len(activation) != len(partition):
        raise ValueError(
            f"activation lists {len(activation)} activations, "
            f"{len(partition)} blocks need one each: sizes={partition.sizes}"
        )
    return Activations(tuple(map(as_activation, activation)), partition, channel_axis, event_ndim)


@dataclass(frozen=True, repr=False)
class Activations:
    """One σ for each block of the channel axis, of points whose last `event_ndim` axes are no batch."""

    blocks: tuple[Activation, ...]
    partition: Partition
    channel_axis: int
    event_ndim: int

    @property
    def runs(self) -> list[tuple[Activation, int]]:
        """Neighbouring blocks with the same σ, and how many channels they have."""
        pairs = groupby(zip(self.blocks, self.partition.sizes, strict=True), key=lambda pair: pair[0])
        return [(a, sum(size for _, size in run)) for a, run in pairs]

    @property
    def codes(self) -> tuple[int, ...] | None:
        """Each block's place in the table, which is what executors know it by; None if one is not of the table."""
        known = list(ACTIVATIONS.values())
        return tuple(map(known.index, self.blocks)) if all(a in known for a in self.blocks) else None

    def __repr__(self) -> str:
        runs = self.runs
        return runs[0][0].name if len(runs) == 1 else f"[{', '.join(a.name for a in self.blocks)}]"

    def __call__(self, y: Tensor, numbers: Numbers = REALS, order: int = 0) -> Tensor:
        """σ(y) on all channels at once, or its derivative of an order."""
        runs, axis = self.runs, -1 - self.event_ndim
        if len(runs) == 1:
            return numbers.extended(runs[0][0], y, axis, order)
        pieces = y.split([size for _, size in runs], dim=self.channel_axis)
        images = [numbers.extended(a, piece, axis, order) for (a, _), piece in zip(runs, pieces, strict=True)]
        return torch.cat(images, self.channel_axis)

    def slope(self, y: Tensor, numbers: Numbers = REALS) -> Tensor:
        """σ'(y) on all channels at once."""
        return self(y, numbers, order=1)
