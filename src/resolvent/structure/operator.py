"""Linear operators: how a weight acts on points, read one rectangle at a time: the rest of W is never touched."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

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
    """The part W[lags, to, source] of a weight, the k-th one of a system; where there is no time, the lag is 0."""

    k: int
    lags: range
    to: range
    source: range
    start: int | None = None
    """Where its entries begin in a packed weight, which holds what is read alone, one rectangle after another."""


class Product(NamedTuple):
    """y[to] += W[lags] z[source] with the rectangle k, or W* for W, for times that lie a lag apart."""

    to: Region
    source: Region
    lags: range
    k: int


class Form(NamedTuple):
    """An operator as plain integers, for executors that know its kind; axes of a kernel that do not exist are 1."""

    kind: int
    channels: int
    lags: int = 0
    axes: int = 0
    kernel: tuple[int, ...] = (1, 1, 1)
    before: tuple[int, ...] = (0, 0, 0)


DENSE, LAGGED, CONVOLUTION = range(3)


class Operator(ABC):
    """How a weight acts on points, whatever the order in which it is read.

    Points are `(batch, *event)` and weights `weight_shape`, or both lead with members: an ensemble of weights, each
    acting on its own points. A new operator brings `apply` and its shapes; all else follows, and may be made faster.
    """

    channels: int
    channel_axis: int = -1
    event_ndim: int
    """How many of the last axes of a point are no batch."""
    weight_shape: tuple[int, ...]
    weight_axes: tuple[int, int] = (0, 1)
    """Where a weight has its output and its input channels."""
    layout: str
    ndims: range
    """How many axes a point may have: one for the batch or none or, where it is dense, any."""

    @property
    def arguments(self) -> dict[str, object]:
        """What a machine with this operator was made with, besides what all machines share."""
        return {}

    def form(self) -> Form | None:
        """The integers by which executors know it; None where they are not to serve, as for one of your own."""
        return None

    def entries(self, weight: Tensor, rectangle: Rectangle) -> Tensor:
        """W[lags, to, source], a view: the only place that says where a weight or its cotangent has its entries."""
        (out, into), ndim, (_, lags, to, source, start) = self.weight_axes, len(self.weight_shape), rectangle
        if start is not None:
            shape = self.entries_shape(rectangle)
            return weight.narrow(-1, start, prod(shape)).view(*weight.shape[:-1], *shape)
        weight = weight.narrow(out - ndim, to.start, len(to)).narrow(into - ndim, source.start, len(source))
        return narrow(weight, -ndim, lags) if out else weight

    def entries_shape(self, rectangle: Rectangle) -> tuple[int, ...]:
        (out, into), shape = self.weight_axes, list(self.weight_shape)
        shape[0] = len(rectangle.lags)  # where there is time
        shape[out], shape[into] = len(rectangle.to), len(rectangle.source)
        return tuple(shape)

    def mask(self, read: Tensor) -> Tensor:
        """The mask `[lag, out, in]` of what is read, in the shape of a weight."""
        return read[0].reshape(*read.shape[1:], *(1,) * (len(self.weight_shape) - 2)).expand(self.weight_shape)

    @abstractmethod
    def apply(self, W: Tensor, z: Any) -> Any:
        """W z of the entries W of one rectangle and the z of its source, without members; not in place."""

    def factor(self, weight: Tensor, rectangle: Rectangle, transposed: bool) -> Any:
        """What products with a rectangle, or with its transpose, multiply by: made once in a sweep."""
        return self.entries(weight, rectangle)

    def add_product(self, y: Tensor, z: Tensor, W: Any, product: Product, transposed: bool) -> None:
        """y[to] += W z[source] in place, of a factor W; with W* for W when transposed."""
        multiply: Any = self._adjoint if transposed else self.apply
        if z.ndim > self.event_ndim + 1:
            multiply = torch.func.vmap(multiply)
        part, Wz = self.part(y, product.to), multiply(W, self.part(z, product.source))
        if Wz.shape != part.shape:
            raise ValueError(f"{type(self).__name__} gives {tuple(Wz.shape)} where y has {tuple(part.shape)}")
        part.add_(Wz)

    def add_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        """Q += v z* in place, summed over the batch, of the entries Q of one rectangle."""

        def cotangent(Q: Tensor, v: Tensor, z: Tensor) -> Tensor:
            return torch.func.vjp(lambda W: self.apply(W, z), Q)[1](v)[0]

        if z.ndim > self.event_ndim + 1:
            cotangent = torch.func.vmap(cotangent)
        Q.add_(cotangent(Q, *(narrow(x, self.channel_axis, r) for x, r in ((v, rectangle.to), (z, rectangle.source)))))

    def edge(self, W: Tensor, z: Any, to: Region, source: Region, lags: Sequence[int]) -> Any:
        """W[lags] z, for the z of that source alone: one edge of the machine as a sum. W begins at the first lag."""
        return self.apply(W, z)

    def part(self, x: Any, region: Region) -> Any:
        """x[region], as a view."""
        return x.narrow(self.channel_axis, region.channels.start, len(region.channels))

    def full_shape(self, x: Tensor) -> torch.Size:
        """The shape of x if it had all channels."""
        axis = x.ndim + self.channel_axis
        return torch.Size((*x.shape[:axis], self.channels, *x.shape[axis + 1 :]))

    def extended(self, x: Any, bias: Tensor | None = None) -> Any:
        """x + bias on all channels, of an x that may have only the first ones."""
        axis = self.channel_axis
        missing = self.channels - x.shape[axis]
        x = F.pad(x, (*(0, 0) * (-1 - axis), 0, missing)) if missing else x
        return x if bias is None else x + bias.reshape(-1, *(1,) * (-1 - axis))

    def time_steps(self, x: Any) -> int:
        return 1

    def positions(self, x: Any) -> int:
        """How many entries of each channel a sample has."""
        return self.time_steps(x)

    def everything(self, time_steps: int) -> Tensor:
        """A mask of all indices of a point, with one entry for each axis that every index shares."""
        return torch.ones(self.channels, *(1,) * (-1 - self.channel_axis), dtype=torch.bool)

    def _adjoint(self, W: Tensor, v: Tensor) -> Tensor:
        """W* v, as autograd sees it; z has as many entries for each channel as v."""
        shape = list(v.shape)
        shape[self.channel_axis] = W.shape[self.weight_axes[1]]
        return torch.func.vjp(lambda z: self.apply(W, z), v.new_zeros(shape))[1](v)[0]


def final(cls: Any) -> Any:
    """No subclass of an operator that executors know: what it changes would not be computed."""

    def refuse(subclass: type, **options: Any) -> None:
        raise TypeError(f"{cls.__name__} is final: {subclass.__name__} is to be a subclass of rv.Operator")

    cls.__init_subclass__ = classmethod(refuse)
    return cls


def narrow(x: Any, axis: int, part: range) -> Any:
    return x.narrow(axis, part.start, len(part))


def moved(part: range, by: int) -> range:
    return range(part.start + by, part.stop + by)


def add_matmul(out: Tensor, a: Tensor, b: Tensor) -> None:
    """out += a b, without a copy of the product where the library can do so."""
    if a.ndim == b.ndim == 2:
        out.addmm_(a, b)
    elif a.ndim == b.ndim == 3:
        out.baddbmm_(a, b)
    else:
        out.add_(multiply(a, b))


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b, where b may have one axis of members and a has a batch axis more."""
    return a @ (b.unsqueeze(-3) if b.ndim > 2 else b)
