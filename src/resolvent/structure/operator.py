"""Linear operators, read one rectangle at a time so that the masked part of W is never touched."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import flop_registry

# PyTorch counts the arithmetic of addmm and baddbmm, but not of their in-place forms, which the sweep uses.
flop_registry.setdefault(torch.ops.aten.addmm_, flop_registry[torch.ops.aten.addmm])
flop_registry.setdefault(torch.ops.aten.baddbmm_, flop_registry[torch.ops.aten.baddbmm])


class Region(NamedTuple):
    """Channels at some time steps; where there is no time, all is at step 0."""

    times: range
    channels: range


class Rectangle(NamedTuple):
    """The part W[lags, to, source] of a weight; where there is no time, the lag is 0."""

    lags: range
    to: range
    source: range


class Product(NamedTuple):
    """y[to] += W[lags, to, source] z[source], for times that lie a lag apart."""

    to: Region
    source: Region
    lags: range


class Operator(ABC):
    """How a weight acts on points, whatever the order in which it is read.

    Points are `(batch, *event)` and weights `weight_shape`, or both carry one leading axis more: an ensemble of
    weights, each acting on its own points.
    """

    channel_axis: int
    event_ndim: int
    weight_shape: tuple[int, ...]
    weight_axes: tuple[int, int]  # where a weight has its output and its input channels
    layout: str
    ndims: range  # how many axes a point may have: one for the batch or none or, where it is dense, any

    @property
    def arguments(self) -> dict[str, object]:
        """What a machine with this operator was made with, besides what all machines share."""
        return {}

    @abstractmethod
    def product(self, weight: Tensor, transposed: bool) -> Callable[[Tensor, Tensor, Product, bool], None]:
        """The in-place y[to] += W z[source] as a function of (y, z, product, fresh); with W* for W when transposed.

        Where it is fresh, y[to] is only written: y[to] = W z[source].
        """

    @abstractmethod
    def accumulate_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        """Q[rectangle] += v z* in place, summed over the batch and space or time."""

    @abstractmethod
    def block(self, weight: Tensor, z: Tensor, to: Region, source: Region, lags: Sequence[int]) -> Tensor:
        """W[lags, to, source] z, for the z of that source alone: one edge of the machine as a sum."""

    @abstractmethod
    def mask(self, read: Tensor) -> Tensor:
        """The mask `[lag, out, in]` of what is read, in the shape of a weight."""

    def part(self, x: Tensor, region: Region) -> Tensor:
        """x[region], as a view."""
        return narrow(x, self.channel_axis, region.channels)

    def full_shape(self, x: Tensor) -> torch.Size:
        """The shape of x if it had all channels."""
        axis = x.ndim + self.channel_axis
        return torch.Size((*x.shape[:axis], self.weight_shape[self.weight_axes[0]], *x.shape[axis + 1 :]))

    def extended(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x + bias on all channels, of an x that may have only the first ones."""
        axis = self.channel_axis
        missing = self.weight_shape[self.weight_axes[0]] - x.shape[axis]
        x = F.pad(x, (*(0, 0) * (-1 - axis), 0, missing)) if missing else x
        return x if bias is None else x + bias.reshape(-1, *(1,) * (-1 - axis))

    def time_steps(self, x: Tensor) -> int:
        return 1

    def positions(self, x: Tensor) -> int:
        """How many entries of each channel a sample has."""
        return self.time_steps(x)

    def everything(self, time_steps: int) -> Tensor:
        """A mask of all indices of a point, with one entry for each axis that every index shares."""
        return torch.ones(self.weight_shape[self.weight_axes[0]], *(1,) * (-1 - self.channel_axis), dtype=torch.bool)


@dataclass(eq=False)
class Dense(Operator):
    """W of shape (n, n), `[out, in]`, on points (..., n)."""

    channels: int
    channel_axis = -1
    event_ndim = 1
    weight_axes = (0, 1)
    layout = "(..., channels)"
    ndims = range(1, 100)

    def __post_init__(self):
        self.weight_shape = (self.channels, self.channels)

    def product(self, weight: Tensor, transposed: bool) -> Callable[[Tensor, Tensor, Product, bool], None]:
        W = weight.mT if transposed else weight

        def add(y: Tensor, z: Tensor, product: Product, fresh: bool) -> None:
            rectangle = narrow(narrow(W, -2, product.to.channels), -1, product.source.channels)
            add_product(self.part(y, product.to), self.part(z, product.source), rectangle.mT, fresh)

        return add

    def accumulate_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        to, source = rectangle.to, rectangle.source
        add_product(narrow(narrow(Q, -2, to), -1, source), narrow(v, -1, to).mT, narrow(z, -1, source))

    def block(self, weight: Tensor, z: Tensor, to: Region, source: Region, lags: Sequence[int]) -> Tensor:
        return z @ narrow(narrow(weight, -2, to.channels), -1, source.channels).mT

    def mask(self, read: Tensor) -> Tensor:
        return read[0]


def narrow(x: Tensor, axis: int, part: range) -> Tensor:
    return x.narrow(axis, part.start, len(part))


def moved(part: range, by: int) -> range:
    return range(part.start + by, part.stop + by)


def add_product(out: Tensor, a: Tensor, b: Tensor, fresh: bool = False) -> None:
    """out += a b or, where it is fresh, out = a b; without a copy of the product where the library can do so."""
    if fresh:
        torch.matmul(a, b, out=out)
    elif a.ndim == b.ndim == 2:
        out.addmm_(a, b)
    elif a.ndim == b.ndim == 3:
        out.baddbmm_(a, b)
    else:
        out.add_(multiply(a, b))


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b, where b may have one ensemble axis and a has a batch axis more."""
    return a @ (b.unsqueeze(-3) if b.ndim > 2 else b)
