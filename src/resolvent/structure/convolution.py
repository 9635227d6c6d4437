"""The operator of convolutional machines."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .operator import CONVOLUTION, Form, Operator, Product, Rectangle, final, moved, narrow

CONVOLVE = (F.conv1d, F.conv2d, F.conv3d)
ADJOINT = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


@final
@dataclass(frozen=True)
class Convolution(Operator):
    """W of shape (n, n, *kernel), acting as y[t] = Σ_k W[k] z[t + k - before] on points (batch, n, *space)."""

    channels: int
    kernel: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    """(before, after) for each axis, with before + after = kernel - 1."""

    def __post_init__(self):
        axes = len(self.kernel)
        if len(self.padding) != axes:
            raise ValueError(f"padding {self.padding} must be one pair for each axis of the kernel {self.kernel}")
        for (before, after), size in zip(self.padding, self.kernel, strict=True):
            if min(before, after) < 0 or before + after != size - 1:
                raise ValueError(
                    f"padding ({before}, {after}) does not fit a kernel of {size}: "
                    f"before + after must be {size - 1}, and neither below 0"
                )
        facts = dict(
            channel_axis=-1 - axes,
            event_ndim=1 + axes,
            ndims=range(1 + axes, 3 + axes),
            weight_shape=(self.channels, self.channels, *self.kernel),
            layout=f"(batch, channels, {', '.join(['space'] * axes)}) or the same without batch",
        )
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    @property
    def arguments(self) -> dict[str, object]:
        return dict(kernel_size=self.kernel, padding=self.padding)

    def form(self) -> Form:
        missing = 3 - len(self.kernel)
        before = (*(0,) * missing, *(pair[0] for pair in self.padding))
        return Form(CONVOLUTION, self.channels, 0, len(self.kernel), (*(1,) * missing, *self.kernel), before)

    def apply(self, W: Tensor, z: Any) -> Any:
        padded = F.pad(z, [p for pair in reversed(self.padding) for p in pair])
        return CONVOLVE[len(self.kernel) - 1](padded, W)

    def factor(self, weight: Tensor, rectangle: Rectangle, transposed: bool) -> tuple[Tensor, bool]:
        """A convolution is also the adjoint of the flipped one with inputs for outputs: whichever is faster."""
        axes, W = len(self.kernel), self.entries(weight, rectangle)
        adjoint = _adjoint_is_faster(weight, axes)
        if transposed != adjoint:
            W = W.transpose(self.channel_axis - 1, self.channel_axis).flip(tuple(range(-axes, 0)))
        return W, adjoint

    def add_product(self, y: Tensor, z: Tensor, W: tuple[Tensor, bool], product: Product, transposed: bool) -> None:
        eager = not torch.compiler.is_compiling()  # compiled and exported code is to serve any space
        if eager and y.numel() == 0:
            return  # the library's convolutions refuse an empty space
        rectangle, adjoint = W
        common, excess = self._paddings(transposed != adjoint)
        convolve = partial((ADJOINT if adjoint else CONVOLVE)[len(self.kernel) - 1], padding=common)
        if rectangle.ndim > len(self.weight_shape):
            convolve = torch.func.vmap(convolve)
        z = self.part(z, product.source)
        with _ieee_float32(z) if eager else nullcontext():
            # what the one needs to be added to its input, the other has too much in its output
            if adjoint:
                Wz = _pad(convolve(z, rectangle), excess, -1)
            elif eager and _column_is_faster(z):
                z, rectangle = (x.unsqueeze(-1) for x in (_pad(z, excess), rectangle))
                Wz = F.conv2d(z, rectangle, padding=(*common, 0)).squeeze(-1)
            else:
                Wz = convolve(_pad(z, excess), rectangle)
        self.part(y, product.to).add_(Wz)

    def add_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        eager = not torch.compiler.is_compiling()
        if eager and v.numel() == 0:
            return
        common, excess = self._paddings(transposed=False)
        v, z = narrow(v, self.channel_axis, rectangle.to), narrow(z, self.channel_axis, rectangle.source)
        if eager and _products_are_faster(v, z):
            for tap in range(*self.kernel):
                shift, steps = tap - self.padding[0][0], v.shape[-1]
                times = range(max(0, -shift), min(steps, steps - shift))
                if times:
                    past = narrow(z, -1, moved(times, shift))
                    Q.select(-1, tap).add_((narrow(v, -1, times) @ past.mT).sum(0))
            return
        column = eager and _column_is_faster(z)

        def cotangent(v: Tensor, z: Tensor, part: Tensor) -> Tensor:
            padding = [*common, 0] if column else common
            v, z, part = (x.unsqueeze(-1) for x in (v, z, part)) if column else (v, z, part)
            ones, zeros, wanted = [1] * len(padding), [0] * len(padding), [False, True, False]
            Q = torch.ops.aten.convolution_backward(v, z, part, None, ones, padding, ones, False, zeros, 1, wanted)[1]
            return Q.squeeze(-1) if column else Q

        if Q.ndim > len(self.weight_shape):
            cotangent = torch.func.vmap(cotangent)
        with _ieee_float32(z) if eager else nullcontext():
            Q.add_(cotangent(v, _pad(z, excess), Q))

    def positions(self, x: Any) -> int:
        return prod([len(range(size)) for size in x.shape[self.channel_axis + 1 :]])

    def _paddings(self, transposed: bool) -> tuple[list[int], tuple[int, ...]]:
        """What the convolution pads on both sides by itself, and the rest, as `F.pad` wants it: last axis first."""
        pairs = [pair[::-1] for pair in self.padding] if transposed else self.padding
        common = [min(pair) for pair in pairs]
        return common, tuple(p - c for pair, c in zip(pairs[::-1], common[::-1], strict=True) for p in pair)


def _adjoint_is_faster(weight: Tensor, axes: int) -> bool:
    """Over images in float32, cuDNN's choice for convolutions takes twice as long as that for their adjoints."""
    return axes > 1 and weight.is_cuda and weight.dtype == torch.float32 and weight.ndim == axes + 2  # no ensemble


def _column_is_faster(x: Tensor) -> bool:
    """Whether cuDNN is to see one axis as the height of an image.

    Of rows up to 256 entries in float32, it takes Fourier transforms for some numbers of channels: up to 300 times as
    long as it needs for columns. Columns take between two thirds and 1.5 times as long as rows that it does not
    transform.
    """
    return _float32_on_a_gpu(x) and x.shape[-1] <= 256


def _products_are_faster(v: Tensor, z: Tensor) -> bool:
    """Whether Q is better a product for each tap: between many channels over a long axis up to three times as fast."""
    large = _float32_on_a_gpu(v) and min(v.shape[1], z.shape[1]) >= 128
    return large and v.shape[-1] > 256 and v.shape[-1] >= z.shape[1]  # the samples' products are not larger than v


def _float32_on_a_gpu(x: Tensor) -> bool:
    """Whether these are such points over one axis, without an ensemble."""
    return x.ndim == 3 and x.is_cuda and x.dtype == torch.float32


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


def _pad(x: Tensor, padding: tuple[int, ...], sign: int = 1) -> Tensor:
    return F.pad(x, [sign * p for p in padding]) if any(padding) else x
