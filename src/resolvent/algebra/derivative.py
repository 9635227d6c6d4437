"""The derivative of a function between named parts and its dual. Parts not of floating point are constants."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

Parts = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""A function from the parts it reads to the parts it writes."""


class Linear(NamedTuple):
    """A linear function between parts: values of the shapes it reads, in their order, to a tuple of what it writes."""

    function: Callable[..., tuple[Tensor, ...]]
    reads: dict[str, Tensor]
    writes: list[str]


def tangent(function: Parts, x: dict[str, Tensor]) -> Linear | None:
    """Df(x), or None where there is nothing to differentiate by."""
    on_floats, reads, writes = _on_floats(function, x)
    if not reads or not writes:
        return None
    primals = tuple(reads.values())

    def derivative(*tangents: Tensor) -> tuple[Tensor, ...]:
        return torch.func.jvp(on_floats, primals, tangents)[1]

    return Linear(derivative, reads, [*writes])


def dual(function: Parts, x: dict[str, Tensor]) -> Linear | None:
    """(Df(x))*, or None where there is nothing to send cotangents to."""
    on_floats, reads, writes = _on_floats(function, x)
    if not reads or not writes:
        return None
    pull = torch.func.vjp(on_floats, *reads.values())[1]

    def derivative(*cotangents: Tensor) -> tuple[Tensor, ...]:
        return pull(cotangents)

    return Linear(derivative, writes, [*reads])


def uses(function: Parts, x: dict[str, Tensor]) -> dict[str, bool]:
    """By which of the parts it reads the function's derivative at x is not zero; other than floats count as used."""
    at_x = dual(function, {name: value.detach() for name, value in x.items()})
    if at_x is None:
        return dict.fromkeys(x, True)
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(value.shape, generator=generator).to(value) for value in at_x.reads.values()]
    gradients = dict(zip(at_x.writes, at_x.function(*seeds), strict=True))
    return {name: name not in gradients or bool(gradients[name].count_nonzero()) for name in x}


def _on_floats(function: Parts, x: dict[str, Tensor]):
    """The function of the floats alone, to a tuple of floats; and the floats it reads and writes at x."""

    def floats(parts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: value for name, value in parts.items() if value.is_floating_point()}

    reads = floats(x)

    def on_floats(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(floats(function(x | dict(zip(reads, values, strict=True)))).values())

    return on_floats, reads, floats(function(x))


class Held(nn.Module):
    """A function with some of its arguments held fast."""

    def __init__(self, module: Callable, held: list[Tensor | None]):
        super().__init__()
        self.module = module
        for i, value in enumerate(held):
            self.register_buffer(f"held{i}", value)
        self.count = len(held)

    def forward(self, *arguments: Tensor):
        rest = iter(arguments)
        held = (getattr(self, f"held{i}") for i in range(self.count))
        return self.module(*(next(rest) if value is None else value for value in held))
