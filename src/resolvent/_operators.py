"""Linear operators, read one rectangle at a time so that the masked part of W is never touched."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

# PyTorch counts the arithmetic of addmm and baddbmm, but not of their in-place forms, which the sweep uses.
flop_registry.setdefault(torch.ops.aten.addmm_, flop_registry[torch.ops.aten.addmm])
flop_registry.setdefault(torch.ops.aten.baddbmm_, flop_registry[torch.ops.aten.baddbmm])


class Operator(ABC):
    """How a weight acts on points, without its ordering.

    Points are `(batch, *event)` and weights `weight_shape`, or both carry one leading axis more: an ensemble of
    weights, each acting on its own points.
    """

    channel_axis: int
    event_ndim: int

    @property
    @abstractmethod
    def weight_shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def transpose(self, weight: Tensor) -> Tensor:
        """The weight of W*, to be read with `to` and `source` exchanged."""

    @abstractmethod
    def accumulate(self, y: Tensor, weight: Tensor, z: Tensor, to: slice, source: slice) -> None:
        """y[to] += W[to, source] z[source], in place."""

    @abstractmethod
    def accumulate_cotangent(self, weight: Tensor, v: Tensor, z: Tensor, to: slice, source: slice) -> None:
        """weight[to, source] += v[to] z[source]*, summed over the batch, in place."""


@dataclass(frozen=True)
class Dense(Operator):
    """W of shape (n, n), `[out, in]`, on points (..., n)."""

    channels: int
    channel_axis = -1
    event_ndim = 1

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return (self.channels, self.channels)

    def transpose(self, weight: Tensor) -> Tensor:
        return weight.mT

    def accumulate(self, y: Tensor, weight: Tensor, z: Tensor, to: slice, source: slice) -> None:
        _add_product(y[..., to], z[..., source], weight[..., to, source].mT)

    def accumulate_cotangent(self, weight: Tensor, v: Tensor, z: Tensor, to: slice, source: slice) -> None:
        _add_product(weight[..., to, source], v[..., to].mT, z[..., source])


def _add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    if out.ndim == 2:
        out.addmm_(a, b)
    else:
        out.baddbmm_(a, b)
