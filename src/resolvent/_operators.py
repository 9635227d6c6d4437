"""Linear operators, read one rectangle at a time so that the masked part of W is never touched."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.utils.flop_counter import flop_registry

# PyTorch counts the arithmetic of addmm and baddbmm, but not of their in-place forms, which the sweep uses.
flop_registry.setdefault(torch.ops.aten.addmm_, flop_registry[torch.ops.aten.addmm])
flop_registry.setdefault(torch.ops.aten.baddbmm_, flop_registry[torch.ops.aten.baddbmm])

CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)
ADJOINT = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


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
        return _narrow(x, self.channel_axis, region.channels)

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
            rectangle = _narrow(_narrow(W, -2, product.to.channels), -1, product.source.channels)
            _add_product(self.part(y, product.to), self.part(z, product.source), rectangle.mT, fresh)

        return add

    def accumulate_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        to, source = rectangle.to, rectangle.source
        _add_product(_narrow(_narrow(Q, -2, to), -1, source), _narrow(v, -1, to).mT, _narrow(z, -1, source))

    def block(self, weight: Tensor, z: Tensor, to: Region, source: Region, lags: Sequence[int]) -> Tensor:
        return z @ _narrow(_narrow(weight, -2, to.channels), -1, source.channels).mT

    def mask(self, read: Tensor) -> Tensor:
        return read[0]


@dataclass(eq=False)
class Conv(Operator):
    """W of shape (n, n, *kernel), acting as y[t] = Σ_k W[k] z[t + k - before] on points (batch, n, *space)."""

    channels: int
    kernel: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """(before, after) for each axis, with before + after = kernel - 1."""
    weight_axes = (0, 1)

    @property
    def arguments(self) -> dict[str, object]:
        return dict(kernel_size=self.kernel, padding=self.padding)

    def __post_init__(self):
        axes = len(self.kernel)
        self.channel_axis = -1 - axes
        self.event_ndim = 1 + axes
        self.ndims = range(1 + axes, 3 + axes)
        self.weight_shape = (self.channels, self.channels, *self.kernel)
        self.layout = f"(batch, channels, {', '.join(['space'] * axes)}) or the same without batch"

    def product(self, weight: Tensor, transposed: bool) -> Callable[[Tensor, Tensor, Product, bool], None]:
        axis, space = self.channel_axis, tuple(range(-len(self.kernel), 0))
        # a convolution is also the adjoint of another one, the flipped one with inputs for outputs
        adjoint = _adjoint_is_faster(weight, len(space))
        W = weight if transposed == adjoint else weight.transpose(axis - 1, axis).flip(space)
        common, excess = self._paddings(transposed != adjoint)
        convolve = partial((ADJOINT if adjoint else CONVOLVE)[len(space) - 1], padding=common)
        if weight.ndim > len(self.weight_shape):
            convolve = torch.func.vmap(convolve)

        def add(y: Tensor, z: Tensor, product: Product, fresh: bool) -> None:
            if not torch.compiler.is_compiling() and y.numel() == 0:
                return  # the library's convolutions refuse an empty space
            first, second = (product.source, product.to) if adjoint else (product.to, product.source)
            rectangle = _narrow(_narrow(W, axis - 1, first.channels), axis, second.channels)
            z = self.part(z, product.source)
            with nullcontext() if torch.compiler.is_compiling() else _ieee_float32(z):
                # what the one needs to be added to its input, the other has too much in its output
                Wz = _pad(convolve(z, rectangle), excess, -1) if adjoint else convolve(_pad(z, excess), rectangle)
            part = self.part(y, product.to)
            part.copy_(Wz) if fresh else part.add_(Wz)

        return add

    def accumulate_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        to, source = rectangle.to, rectangle.source
        if not torch.compiler.is_compiling() and v.numel() == 0:
            return
        axis, ones = self.channel_axis, [1] * len(self.kernel)
        common, excess = self._paddings(transposed=False)
        part = _narrow(_narrow(Q, axis - 1, to), axis, source)

        def cotangent(v: Tensor, z: Tensor, part: Tensor) -> Tensor:
            zeros, wanted = [0] * len(ones), [False, True, False]
            return torch.ops.aten.convolution_backward(v, z, part, None, ones, common, ones, False, zeros, 1, wanted)[1]

        if Q.ndim > len(self.weight_shape):
            cotangent = torch.func.vmap(cotangent)
        with nullcontext() if torch.compiler.is_compiling() else _ieee_float32(z):
            part.add_(cotangent(_narrow(v, axis, to), _pad(_narrow(z, axis, source), excess), part))

    def block(self, weight: Tensor, z: Tensor, to: Region, source: Region, lags: Sequence[int]) -> Tensor:
        convolve = CONVOLVE[len(self.kernel) - 1]
        padded = F.pad(z, [p for pair in reversed(self.padding) for p in pair])
        return convolve(padded, _narrow(_narrow(weight, 0, to.channels), 1, source.channels))

    def mask(self, read: Tensor) -> Tensor:
        return read[0].reshape(self.channels, self.channels, *(1,) * len(self.kernel)).expand(self.weight_shape)

    def positions(self, x: Tensor) -> int:
        return prod([len(range(size)) for size in x.shape[self.channel_axis + 1 :]])

    def _paddings(self, transposed: bool) -> tuple[list[int], tuple[int, ...]]:
        """What the convolution pads on both sides by itself, and the rest, as `F.pad` wants it: last axis first."""
        pairs = [pair[::-1] for pair in self.padding] if transposed else self.padding
        common = [min(pair) for pair in pairs]
        return common, tuple(p - c for pair, c in zip(pairs[::-1], common[::-1], strict=True) for p in pair)


@dataclass(eq=False)
class Lagged(Operator):
    """W of shape (lags + 1, n, n), `[lag, out, in]`, acting as y[t] = Σ_τ W[τ] z[t - τ] on points (batch, time, n)."""

    channels: int
    lags: int
    channel_axis = -1
    event_ndim = 2
    weight_axes = (1, 2)
    layout = "(batch, time, channels) or the same without batch"
    ndims = range(2, 4)

    @property
    def arguments(self) -> dict[str, object]:
        return dict(lags=self.lags)

    def __post_init__(self):
        self.weight_shape = (self.lags + 1, self.channels, self.channels)

    def product(self, weight: Tensor, transposed: bool) -> Callable[[Tensor, Tensor, Product, bool], None]:
        W = weight.mT if transposed else weight
        # [(lag, in), out] with the longest lag first: the past of one step, in the order of time, is one vector.
        past = _merge(weight.flip(-3).mT.contiguous(), -3)

        def add(y: Tensor, z: Tensor, product: Product, fresh: bool) -> None:
            to, source, lags = product.to, product.source, product.lags
            steps, window = (source, to) if transposed else (to, source)
            if len(lags) > len(steps.times) and len(window.channels) == self.channels:
                rows = range((self.lags + 1 - lags.stop) * self.channels, (self.lags + 1 - lags.start) * self.channels)
                rectangle = _narrow(_narrow(past, -2, rows), -1, steps.channels)
                y_part, z_part = self.part(y, to), self.part(z, source)
                before = window.times.start - steps.times.start + lags.stop - 1  # what the first step lacks of its past
                after = steps.times.stop - lags.start - window.times.stop  # what the last one reaches too far
                if len(steps.times) == 1 and not transposed:
                    y_part, z_part = y_part.squeeze(-2), _merge(F.pad(z_part, (0, 0, before, after)), -2)
                    _add_product(y_part, z_part, rectangle, fresh)
                    return
                if transposed:
                    effect = _folded_product(z_part, rectangle.mT, self.channels)
                    effect = _narrow(effect, -2, range(before, before + len(window.times)))
                else:
                    windows = _merge(F.pad(z_part, (0, 0, before, after)).unfold(-2, len(lags), 1).mT.contiguous(), -2)
                    effect = _multiply(windows, rectangle)
                y_part.copy_(effect) if fresh else y_part.add_(effect)
                return
            if fresh:
                self.part(y, to).zero_()
            for lag in lags:
                shift = -lag if transposed else lag
                times = range(
                    max(to.times.start, source.times.start + shift), min(to.times.stop, source.times.stop + shift)
                )
                if times:
                    y_part = self.part(y, Region(times, to.channels))
                    z_part = self.part(z, Region(_shift(times, -shift), source.channels))
                    if len(times) == 1:
                        y_part, z_part = y_part.squeeze(-2), z_part.squeeze(-2)
                    rectangle = _narrow(_narrow(W.select(-3, lag), -2, to.channels), -1, source.channels)
                    _add_product(y_part, z_part, rectangle.mT)

        return add

    def accumulate_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        to, source = rectangle.to, rectangle.source
        for lag in rectangle.lags:
            times = range(lag, self.time_steps(v))
            if times:
                v_rows = _merge(self.part(v, Region(times, to)).contiguous(), -3)
                z_rows = _merge(self.part(z, Region(_shift(times, -lag), source)).contiguous(), -3)
                _add_product(_narrow(_narrow(Q.select(-3, lag), -2, to), -1, source), v_rows.mT, z_rows)

    def block(self, weight: Tensor, z: Tensor, to: Region, source: Region, lags: Sequence[int]) -> Tensor:
        total = z.new_zeros(*z.shape[:-2], len(to.times), len(to.channels))
        for lag in lags:
            before = source.times.start + lag - to.times.start
            after = to.times.stop - source.times.stop - lag
            shifted = F.pad(z, (0, 0, before, after))  # negative padding cuts
            total = total + shifted @ _narrow(_narrow(weight[lag], -2, to.channels), -1, source.channels).mT
        return total

    def mask(self, read: Tensor) -> Tensor:
        return read

    def part(self, x: Tensor, region: Region) -> Tensor:
        return _narrow(_narrow(x, -2, region.times), -1, region.channels)

    def time_steps(self, x: Tensor) -> int:
        return len(range(x.shape[-2]))  # an int, also where a compiler has a symbol

    def everything(self, time_steps: int) -> Tensor:
        return torch.ones(time_steps, self.channels, dtype=torch.bool)


def _adjoint_is_faster(weight: Tensor, axes: int) -> bool:
    """Over images in float32, cuDNN's choice for convolutions takes twice as long as that for their adjoints."""
    return axes > 1 and weight.is_cuda and weight.dtype == torch.float32 and weight.ndim == axes + 2  # no ensemble


@contextmanager
def _ieee_float32(x: Tensor) -> Iterator[None]:
    """No TF32 in cuDNN, where PyTorch has it on by default, unless the precision of matrix products allows it too.

    Dynamo cannot trace such a switch, so in compiled code PyTorch's own flag decides.
    """
    backends: Any = torch.backends
    asked = "tf32" in (backends.fp32_precision, backends.cuda.matmul.fp32_precision)
    before = backends.cudnn.conv.fp32_precision
    if x.dtype != torch.float32 or not x.is_cuda or asked or before == "ieee":
        yield
        return
    backends.cudnn.conv.fp32_precision = "ieee"
    try:
        yield
    finally:
        backends.cudnn.conv.fp32_precision = before


def _narrow(x: Tensor, axis: int, part: range) -> Tensor:
    return x.narrow(axis, part.start, len(part))


def _merge(x: Tensor, axis: int) -> Tensor:
    """x with `axis` and the next one as one, as a view."""
    axis += x.ndim
    return x.view(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])


def _folded_product(a: Tensor, b: Tensor, channels: int) -> Tensor:
    """The sum of windows a b (..., step, window * channels) that lie a step apart, as (..., time, channels).

    With as many zeros behind each window as there are steps, rows that are one entry shorter begin one step later each.
    """
    *batch, steps, _ = a.shape
    entries, length = b.shape[-1], b.shape[-1] // channels + steps
    rows = a.new_empty(*batch, steps * length, channels)
    windows = rows.view(*batch, steps, length * channels)
    windows[..., entries:].zero_()
    a = a.contiguous()  # of a strided factor, the library would make one small product for each sample
    if b.ndim > 2 or torch.compiler.is_compiling() or is_legacy_batchedtensor(a):  # they take no out=
        windows[..., :entries] = _multiply(a, b)
    else:
        torch.matmul(a, b, out=windows[..., :entries])
    rows = _narrow(rows, -2, range(steps * (length - 1)))
    return rows.view(*batch, steps, length - 1, channels).sum(-3)


def _shift(part: range, by: int) -> range:
    return range(part.start + by, part.stop + by)


def _pad(x: Tensor, padding: tuple[int, ...], sign: int = 1) -> Tensor:
    return F.pad(x, [sign * p for p in padding]) if any(padding) else x


def _add_product(out: Tensor, a: Tensor, b: Tensor, fresh: bool = False) -> None:
    """out += a b or, where it is fresh, out = a b; without a copy of the product where the library can do so."""
    if fresh:
        torch.matmul(a, b, out=out)
    elif a.ndim == b.ndim == 2:
        out.addmm_(a, b)
    elif a.ndim == b.ndim == 3:
        out.baddbmm_(a, b)
    else:
        out.add_(_multiply(a, b))


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """a b, where b may have one ensemble axis and a has a batch axis more."""
    return a @ (b.unsqueeze(-3) if b.ndim > 2 else b)
