"""The derivative of a sum, and its dual, as sums. Parts that are not of floating point are constants."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..machine import Linear
from .additive import Additive, Parts
from .order import Edge, levels

Function = Callable[[dict[str, Any]], dict[str, Any]]
"""A function from the parts it reads to the parts it writes."""


class LinearPart(NamedTuple):
    """A linear function between parts: values of the shapes it reads, in their order, to a tuple of what it writes."""

    function: Callable[..., tuple[Tensor, ...]]
    reads: dict[str, Any]
    writes: list[str]


def tangent(function: Function, x: dict[str, Any]) -> LinearPart | None:
    """Df(x), or None where there is nothing to differentiate by."""
    on_floats, reads, writes = _on_floats(function, x)
    if not reads or not writes:
        return None
    primals = tuple(reads.values())

    def derivative(*tangents: Any) -> tuple[Any, ...]:
        return torch.func.jvp(on_floats, primals, tangents)[1]

    return LinearPart(derivative, reads, [*writes])


def dual(function: Function, x: dict[str, Any]) -> LinearPart | None:
    """(Df(x))*, or None where there is nothing to send cotangents to."""
    on_floats, reads, writes = _on_floats(function, x)
    if not reads or not writes:
        return None
    pull = torch.func.vjp(on_floats, *reads.values())[1]

    def derivative(*cotangents: Any) -> tuple[Any, ...]:
        return pull(cotangents)

    return LinearPart(derivative, writes, [*reads])


def _on_floats(function: Function, x: dict[str, Any]):
    """The function of the floats alone, to a tuple of floats; and the floats it reads and writes at x."""

    def floats(parts: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in parts.items() if value.is_floating_point()}

    reads = floats(x)

    def on_floats(*values: Any) -> tuple[Any, ...]:
        return tuple(floats(function(x | dict(zip(reads, values, strict=True)))).values())

    return on_floats, reads, floats(function(x))


class LinearLayer:
    """A layer of a tangent or dual machine: what it reads may be missing, which is zero and costs nothing."""

    def __init__(self, part: LinearPart):
        self.function, self.zeros = part.function, part.reads
        self.reads, self.writes = (*part.reads,), (*part.writes,)

    def evaluate(self, label: str, x: Parts) -> dict[str, Any]:
        if not any(name in x for name in self.reads):
            return {}
        values = (x[name] if name in x else torch.zeros_like(zero) for name, zero in self.zeros.items())
        return dict(zip(self.writes, self.function(*values), strict=True))


class LinearSum(Additive, Linear):
    """Df(x) of a layer or a sum f or, if transposed, (Df(x))*."""

    def __init__(self, f: Any, x: Parts, *, transposed: bool = False):
        self.f, self.x, self.transposed, self.parts, self.labels = f, x, transposed, f.parts, {}
        for layer in f.layers:
            label = f.labels[layer]
            part = (dual if transposed else tangent)(partial(layer.evaluate, label), layer.arguments(label, x))
            if part is not None:
                self.labels[LinearLayer(part)] = label
        self.layers = (*self.labels,)
        order = levels([Edge(label, layer.reads, layer.writes) for layer, label in self.labels.items()])
        self.levels = tuple(tuple(self.layers[i] for i in level) for level in order)

    def dual(self, x: Parts | None = None) -> "LinearSum":
        return LinearSum(self.f, self.x, transposed=not self.transposed)
