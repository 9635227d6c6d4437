"""Programs of the native extension in words, and what they say: each step in plain PyTorch, entry by entry."""

from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from resolvent.structure.activation import ACTIVATIONS

NONE, FUNCTION, SLOPE, SLOPE_AT = range(4)
PRODUCT, ACTIVATE, LOOP = range(3)
UP_TO, BEFORE, WITHIN = range(3)
SIGMA = list(ACTIVATIONS.values())


class Program(NamedTuple):
    """A program in words; `integers` is what the extension parses."""

    channels: int
    ends: tuple[int, ...]
    codes: tuple[int, ...]
    rectangles: tuple[tuple[int, ...], ...]
    steps: tuple[tuple, ...]
    lags: int | None = None  # where there is time
    kernel: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    transposed: bool = False
    packed: bool = False

    @property
    def integers(self) -> tuple[int, ...]:
        kind, missing = (2 if self.kernel else int(self.lags is not None)), 3 - len(self.kernel)
        head = (kind, self.channels, self.lags or 0, len(self.kernel), *(1,) * missing, *self.kernel)
        blocks = (len(self.ends), *self.ends, *self.codes)
        rectangles = (len(self.rectangles), *(end for r in self.rectangles for end in r))
        directions = (int(self.transposed), int(self.packed))
        return (*head, *(0,) * missing, *self.before, *directions, *blocks, *rectangles, *_flat(self.steps))

    @property
    def sizes(self) -> list[int]:
        """How many entries of W each rectangle has."""
        taps = prod(self.kernel)
        return [(t - lag) * (o - out) * (i - source) * taps for lag, t, out, o, source, i in self.rectangles]

    def part(self, W: Tensor, k: int) -> Tensor:
        """W[lags, to, source] of a rectangle."""
        lag, last_lag, out, last_out, source, last_source = self.rectangles[k]
        if self.packed:
            shape = last_lag - lag, last_out - out, last_source - source, *self.kernel
            return W[sum(self.sizes[:k]) :][: self.sizes[k]].view(shape)
        return (W[None] if self.lags is None else W)[lag:last_lag, out:last_out, source:last_source]

    @property
    def weight_shape(self) -> tuple[int, ...]:
        if self.packed:
            return (sum(self.sizes),)
        return (*(() if self.lags is None else (self.lags + 1,)), self.channels, self.channels, *self.kernel)

    def point_shape(self, batch: int, times: int, space: tuple[int, ...], channels: int) -> tuple[int, ...]:
        return (batch, *(() if self.lags is None else (times,)), channels, *space)


def _flat(steps: Any) -> list[int]:
    integers = [len(steps)]
    for step in steps:
        integers += [*step[:2], *_flat(step[2])] if step[0] == LOOP else step
    return integers


@st.composite
def programs(draw, kinds=("dense", "lagged", "convolution")) -> Program:
    kind = draw(st.sampled_from(kinds))
    sizes = draw(st.lists(st.sampled_from((1, 2, 3, 9)), min_size=1, max_size=4))
    ends = tuple(sum(sizes[: i + 1]) for i in range(len(sizes)))
    channels = ends[-1]
    lags = draw(st.integers(0, 4)) if kind == "lagged" else None
    kernel = tuple(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))) if kind == "convolution" else ()

    def ends_of(most: int) -> tuple[int, int]:
        first = draw(st.integers(0, most - 1))
        return first, draw(st.integers(first + 1, most))

    rectangle = st.builds(lambda: (*ends_of((lags or 0) + 1), *ends_of(channels), *ends_of(channels)))
    rectangles = tuple(draw(st.lists(rectangle, min_size=1, max_size=4)))

    def steps(depth: int) -> tuple:
        simple = [
            st.tuples(st.just(PRODUCT), st.integers(0, len(rectangles) - 1), st.integers(0, 0 if lags is None else 2)),
            st.tuples(st.just(ACTIVATE), st.integers(0, len(sizes) - 1)),
        ]
        if lags is not None and depth < 3:
            simple.append(st.builds(lambda stride: (LOOP, stride, steps(depth + 1)), st.integers(1, 4)))
        return tuple(draw(st.lists(st.one_of(simple), min_size=1, max_size=4)))

    return Program(
        channels,
        ends,
        tuple(draw(st.integers(0, len(SIGMA) - 1)) for _ in sizes),
        rectangles,
        steps(0),
        lags,
        kernel,
        tuple(draw(st.integers(0, k - 1)) for k in kernel),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def reference(program: Program, history: int, W: Tensor, y: Tensor, z: Tensor, sigma: Any) -> tuple[Tensor, Tensor]:
    """What the steps say, one entry of a kernel, one pair of times and one lag after the other; sigma(block, part)."""
    if program.lags is None:  # all is at step 0, and behind the channels is space
        y, z = y[:, None], z[:, None]
    y, z, stop = y.clone(), z.clone(), y.shape[1]
    starts = (0, *program.ends)

    def add(k: int, window: range, past: range) -> None:
        lag, last_lag, *ends = program.rectangles[k]
        entries = program.part(W, k)
        to, source = slice(*ends[:2]), slice(*ends[2:])
        for t, s in product(window, past):
            if not lag <= t - s < last_lag:
                continue
            for tap in product(*map(range, program.kernel)):
                shift = tuple(k - b for k, b in zip(tap, program.before, strict=True))
                part = entries[(t - s - lag, slice(None), slice(None), *tap)]
                if program.transposed:
                    pushed = torch.einsum("oi,bo...->bi...", part, z[:, t, to])
                    y[:, s, source] += _shifted(pushed, [-k for k in shift])
                else:
                    y[:, t, to] += _shifted(torch.einsum("oi,bi...->bo...", part, z[:, s, source]), shift)

    def run(steps: Any, window: range, around: range) -> None:
        for kind, which, *rest in steps:
            if kind == PRODUCT:
                pasts = {UP_TO: range(window.stop), BEFORE: range(window.start)}
                add(which, window, pasts.get(rest[0], range(around.start, window.start)))
            elif kind == ACTIVATE:
                for t in window:
                    part = (slice(None), t, slice(starts[which], program.ends[which]))
                    z[part] += sigma(which, y, part)
            else:
                pieces = [range(t, min(t + which, window.stop)) for t in range(window.start, window.stop, which)]
                for piece in reversed(pieces) if program.transposed else pieces:
                    run(rest[0], piece, window)

    run(program.steps, range(history, stop), range(stop))
    return (y[:, 0], z[:, 0]) if program.lags is None else (y, z)


def _shifted(x: Tensor, shift: Any) -> Tensor:
    """x[..., t + shift], zero outside."""
    for axis, by in enumerate(shift, start=2):
        index = torch.arange(x.shape[axis]) + by
        inside = (index >= 0) & (index < x.shape[axis])
        x = x.index_select(axis, index.clamp(0, x.shape[axis] - 1)) * inside.view(-1, *(1,) * (x.ndim - 1 - axis))
    return x


def sigma_of(program: Program, mode: int, point: Tensor | None, inside: Tensor | None) -> Any:
    """σ as the modes say it, on a part (sample, time, channels) of points."""

    def at(x: Any, part: Any) -> Any:
        return None if x is None else (x[:, None] if program.lags is None else x)[part]

    def sigma(block: int, y: Tensor, part: Any) -> Tensor:
        a, x = SIGMA[program.codes[block]], at(point, part)
        if mode in (NONE, FUNCTION):
            new = a.function(y[part]) if mode == FUNCTION else torch.zeros_like(y[part])
        else:
            new = (x if mode == SLOPE else a.slope(x)) * y[part]
        return new if inside is None else new.where(at(inside, part), 0)

    return sigma
