"""The operator of recurrent machines."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..pytorch import is_batched_cotangent
from .operator import LAGGED, Form, Operator, Product, Rectangle, Region, add_matmul, final, moved, multiply, narrow


@final
@dataclass(frozen=True)
class Lagged(Operator):
    """W of shape (lags + 1, n, n), `[lag, out, in]`, acting as y[t] = Σ_τ W[τ] z[t - τ] on points (batch, time, n)."""

    channels: int
    lags: int
    event_ndim = 2
    weight_axes = (1, 2)
    layout = "(batch, time, channels) or the same without batch"
    ndims = range(2, 4)

    def __post_init__(self):
        object.__setattr__(self, "weight_shape", (self.lags + 1, self.channels, self.channels))

    @property
    def arguments(self) -> dict[str, object]:
        return dict(lags=self.lags)

    def form(self) -> Form:
        return Form(LAGGED, self.channels, self.lags)

    def apply(self, W: Tensor, z: Any) -> Any:
        """Of the lags from 0 on."""
        everything = Region(range(z.shape[-2]), range(z.shape[-1]))
        return self.edge(W, z, everything, everything, range(len(W)))

    def mask(self, read: Tensor) -> Tensor:
        return read

    def factor(self, weight: Tensor, rectangle: Rectangle, transposed: bool) -> tuple[Rectangle, Tensor, Tensor | None]:
        """The entries as they are multiplied lag by lag and, where a source is all channels, with all lags in one.

        That is [(lag, in), out] with the longest lag first: the past of one step, in the order of time, is one vector.
        """
        W = self.entries(weight, rectangle)
        whole = len(rectangle.lags) > 1 and len(rectangle.source) == self.channels
        past = _merge(W.flip(-3).mT.contiguous(), -3) if whole else None
        return rectangle, W if transposed else W.mT, past

    def add_product(self, y: Tensor, z: Tensor, W: tuple, product: Product, transposed: bool) -> None:
        rectangle, each, past = W
        to, source, lags = product.to, product.source, product.lags
        if past is not None and len(lags) > len((source if transposed else to).times):
            n, last = self.channels, rectangle.lags.stop
            past = narrow(past, -2, range((last - lags.stop) * n, (last - lags.start) * n))
            _add_past(self.part(y, to), self.part(z, source), past, product, transposed)
            return
        for lag in lags:
            shift = -lag if transposed else lag
            times = range(
                max(to.times.start, source.times.start + shift), min(to.times.stop, source.times.stop + shift)
            )
            if times:
                y_part = self.part(y, Region(times, to.channels))
                z_part = self.part(z, Region(moved(times, -shift), source.channels))
                if len(times) == 1:
                    y_part, z_part = y_part.squeeze(-2), z_part.squeeze(-2)
                add_matmul(y_part, z_part, each.select(-3, lag - rectangle.lags.start))

    def add_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        for i, lag in enumerate(rectangle.lags):
            times = range(lag, self.time_steps(v))
            if times:
                v_rows = _merge(self.part(v, Region(times, rectangle.to)).contiguous(), -3)
                z_rows = _merge(self.part(z, Region(moved(times, -lag), rectangle.source)).contiguous(), -3)
                add_matmul(Q.select(-3, i), v_rows.mT, z_rows)

    def edge(self, W: Tensor, z: Any, to: Region, source: Region, lags: Sequence[int]) -> Any:
        total = z.new_zeros(*z.shape[:-2], len(to.times), W.shape[-2])
        for lag in lags:
            before = source.times.start + lag - to.times.start
            after = to.times.stop - source.times.stop - lag
            total = total + F.pad(z, (0, 0, before, after)) @ W[lag - lags[0]].mT  # negative padding cuts
        return total

    def part(self, x: Any, region: Region) -> Any:
        return narrow(narrow(x, -2, region.times), -1, region.channels)

    def time_steps(self, x: Any) -> int:
        return len(range(x.shape[-2]))  # an int, also where a compiler has a symbol

    def everything(self, time_steps: int) -> Tensor:
        return torch.ones(time_steps, self.channels, dtype=torch.bool)


def _add_past(y: Tensor, z: Tensor, past: Tensor, product: Product, transposed: bool) -> None:
    """y += W z with all lags in one product: of few steps the past is long and, for the dual, where they push to."""
    to, source, lags = product.to.times, product.source.times, product.lags
    steps, window = (source, to) if transposed else (to, source)
    before = window.start - steps.start + lags.stop - 1  # what the first step lacks of its past
    after = steps.stop - lags.start - window.stop  # what the last one reaches too far
    if transposed:
        effect = _folded_product(z, past.mT, y.shape[-1])
        y.add_(narrow(effect, -2, range(before, before + len(window))))
        return
    z = F.pad(z, (0, 0, before, after))
    if len(steps) == 1:
        add_matmul(y.squeeze(-2), _merge(z, -2), past)
        return
    y.add_(multiply(_merge(z.unfold(-2, len(lags), 1).mT.contiguous(), -2), past))


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
    if b.ndim > 2 or torch.compiler.is_compiling() or is_batched_cotangent(a):  # they take no out=
        windows[..., :entries] = multiply(a, b)
    else:
        torch.matmul(a, b, out=windows[..., :entries])
    rows = narrow(rows, -2, range(steps * (length - 1)))
    return rows.view(*batch, steps, length - 1, channels).sum(-3)
