"""The pointwise σ of a machine: one activation for each block."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from .activation import ACTIVATIONS, Activation, ActivationLike, as_activation
from .jet import Jet, lifted, lowered
from .numbers import REALS, Numbers
from .partition import Partition


def activations_of(
    activation: ActivationLike | Sequence[ActivationLike],
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

    runs: tuple[tuple[Activation, int], ...] = field(init=False, compare=False)
    """Neighbouring blocks with the same σ, and how many channels they have."""
    codes: tuple[int, ...] | None = field(init=False, compare=False)
    """Each block's place in the table, by which executors know it; None if one is not *the* one of the table."""

    def __post_init__(self):
        pairs = groupby(zip(self.blocks, self.partition.sizes, strict=True), key=lambda pair: pair[0])
        object.__setattr__(self, "runs", tuple((a, sum(size for _, size in run)) for a, run in pairs))
        known = list(ACTIVATIONS.values())
        codes = tuple(map(known.index, self.blocks)) if all(a in known for a in self.blocks) else None
        object.__setattr__(self, "codes", codes)

    def __repr__(self) -> str:
        return self.runs[0][0].name if len(self.runs) == 1 else f"[{', '.join(a.name for a in self.blocks)}]"

    def __call__(self, y: Any, numbers: Numbers = REALS, order: int = 0) -> Any:
        """σ(y) on all channels at once, or σ'(y) with order 1; of a jet, a jet."""
        if type(y) is Jet:
            return lowered(self(lifted(y, y.numbers, self.event_ndim), y.numbers, order), y.numbers, self.event_ndim)
        axis = -1 - self.event_ndim
        if len(self.runs) == 1:
            return numbers.extended(self.runs[0][0], y, axis, order)
        pieces = y.split([size for _, size in self.runs], dim=self.channel_axis)
        images = [numbers.extended(a, piece, axis, order) for (a, _), piece in zip(self.runs, pieces, strict=True)]
        return torch.cat(images, self.channel_axis)

    def slope(self, y: Any, numbers: Numbers = REALS) -> Any:
        """σ'(y) on all channels at once."""
        return self(y, numbers, order=1)
