"""The operator of recurrent machines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from .operator import Operator, Product, Rectangle, Region, add_product, moved, multiply, narrow

GROUP = 4  # lags that share a matrix product, in a long past: z is copied so many times, and a sum so much shorter
FEW = 2**14  # rows of all lags up to which each lag has a product of its own, to fill a GPU


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
                rectangle = narrow(narrow(past, -2, rows), -1, steps.channels)
                y_part, z_part = self.part(y, to), self.part(z, source)
                before = window.times.start - steps.times.start + lags.stop - 1  # what the first step lacks of its past
                after = steps.times.stop - lags.start - window.times.stop  # what the last one reaches too far
                if len(steps.times) == 1 and not transposed:
                    y_part, z_part = y_part.squeeze(-2), _merge(F.pad(z_part, (0, 0, before, after)), -2)
                    add_product(y_part, z_part, rectangle, fresh)
                    return
                if transposed:
                    effect = _folded_product(z_part, rectangle.mT, self.channels)
                    effect = narrow(effect, -2, range(before, before + len(window.times)))
                else:
                    windows = _merge(F.pad(z_part, (0, 0, before, after)).unfold(-2, len(lags), 1).mT.contiguous(), -2)
                    effect = multiply(windows, rectangle)
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
                    z_part = self.part(z, Region(moved(times, -shift), source.channels))
                    if len(times) == 1:
                        y_part, z_part = y_part.squeeze(-2), z_part.squeeze(-2)
                    rectangle = narrow(narrow(W.select(-3, lag), -2, to.channels), -1, source.channels)
                    add_product(y_part, z_part, rectangle.mT)

        return add

    def past(
        self, weight: Tensor, transposed: bool, y: Tensor, z: Tensor, history: int, most_times: int
    ) -> Callable[[range, range, bool], None]:
        """The in-place y[times] += Σ W[lag] z[times - lag] of what was solved before, as a function of times and lags.

        With W* for W when transposed, where what was solved are later times. The times of a call, `most_times` at most,
        come next in the order of the sweep. A window is the steps of a group of lags, as one vector; with samples
        behind the time, those of many steps and samples are a matrix without a copy for each lag.
        """
        batch, steps, n = z.shape
        W = (weight if transposed else weight.flip(0).mT.contiguous()).view(-1, n)  # [(lag, in), out] in order of time
        reach, margin, sample, row = self.lags + GROUP, most_times + GROUP, GROUP * n, batch * GROUP * n
        # so many steps have windows; beyond them, windows begin anew with those that are reached
        length = min(steps, 2 * (reach + most_times))
        begin = steps - length if transposed else 0
        windows = z.new_zeros(length + 2 * margin, batch, GROUP, n)  # at margin + t - begin, that of the steps up to t
        solved = range(steps, steps) if transposed else range(0)

        def add(times: range, lags: range, fresh: bool) -> None:
            nonlocal begin, solved
            if times.start < begin or times.stop > begin + length:
                windows.zero_()
                begin = max(0, times.stop + reach - length if transposed else times.start - reach)
                solved = range(begin + length, begin + length) if transposed else range(begin, begin)
            new = range(max(times.stop, history), solved.start) if transposed else range(solved.stop, times.start)
            if new:  # goes into all windows that reach it
                into = windows.as_strided(
                    (batch, len(new), GROUP, n),
                    (sample, row, row - n, 1),
                    (margin + new.start - begin) * row + sample - n,
                )
                into.copy_(narrow(z, -2, new).unsqueeze(2))
                solved = range(new.start, solved.stop) if transposed else range(solved.start, new.stop)
            reached = steps - times.start if transposed else times.stop  # from this lag on, no time finds a step
            lags = lags[: reached - lags.start]
            joined = 1 if len(lags) * len(times) * batch < FEW else GROUP
            count, rest = divmod(len(lags), joined)
            part = narrow(y, -2, times).transpose(0, 1)
            for start, width, groups in ((lags.start, rest, 1), (lags.start + rest, joined, count)):
                if not width * groups:
                    continue
                stop = start + width * groups
                window = times.start + start + width - 1 if transposed else times.start - stop + width
                past = windows.as_strided(
                    (groups, len(times) * batch, width * n),
                    (width * row, sample, 1),
                    (margin + window - begin) * row + (GROUP - width) * n,
                )
                rows = start if transposed else self.lags + 1 - stop
                effects = past @ narrow(W, 0, range(rows * n, (rows + width * groups) * n)).view(groups, width * n, n)
                effects = effects.view(groups, *part.shape)
                torch.sum(effects, 0, out=part) if fresh else part.add_(effects.sum(0))
                fresh = False

        return add

    def accumulate_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        to, source = rectangle.to, rectangle.source
        for lag in rectangle.lags:
            times = range(lag, self.time_steps(v))
            if times:
                v_rows = _merge(self.part(v, Region(times, to)).contiguous(), -3)
                z_rows = _merge(self.part(z, Region(moved(times, -lag), source)).contiguous(), -3)
                add_product(narrow(narrow(Q.select(-3, lag), -2, to), -1, source), v_rows.mT, z_rows)

    def block(self, weight: Tensor, z: Tensor, to: Region, source: Region, lags: Sequence[int]) -> Tensor:
        total = z.new_zeros(*z.shape[:-2], len(to.times), len(to.channels))
        for lag in lags:
            before = source.times.start + lag - to.times.start
            after = to.times.stop - source.times.stop - lag
            shifted = F.pad(z, (0, 0, before, after))  # negative padding cuts
            total = total + shifted @ narrow(narrow(weight[lag], -2, to.channels), -1, source.channels).mT
        return total

    def mask(self, read: Tensor) -> Tensor:
        return read

    def part(self, x: Tensor, region: Region) -> Tensor:
        return narrow(narrow(x, -2, region.times), -1, region.channels)

    def time_steps(self, x: Tensor) -> int:
        return len(range(x.shape[-2]))  # an int, also where a compiler has a symbol

    def everything(self, time_steps: int) -> Tensor:
        return torch.ones(time_steps, self.channels, dtype=torch.bool)


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
        windows[..., :entries] = multiply(a, b)
    else:
        torch.matmul(a, b, out=windows[..., :entries])
    rows = narrow(rows, -2, range(steps * (length - 1)))
    return rows.view(*batch, steps, length - 1, channels).sum(-3)
