"""Which of what a layer reads it really uses, and a layer with the rest held fast."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .derivative import Function, dual


def uses(function: Function, x: dict[str, Any]) -> dict[str, bool]:
    """By which of the parts it reads the function's derivative at x is not zero; other than floats count as used."""
    at_x = dual(function, {name: value.detach() for name, value in x.items()})
    if at_x is None:
        return dict.fromkeys(x, True)
    generator = torch.Generator().manual_seed(0)
    seeds = [torch.randn(value.shape, generator=generator).to(value) for value in at_x.reads.values()]
    gradients = dict(zip(at_x.writes, at_x.function(*seeds), strict=True))
    return {name: name not in gradients or bool(gradients[name].count_nonzero()) for name in x}


class Held(nn.Module):
    """A function with some of its arguments held fast."""

    def __init__(self, module: Callable, held: list[Tensor | None]):
        super().__init__()
        self.module = module
        for i, value in enumerate(held):
            self.register_buffer(f"held{i}", value)
        self.count = len(held)

    def forward(self, *arguments: Any):
        rest = iter(arguments)
        held = (getattr(self, f"held{i}") for i in range(self.count))
        return self.module(*(next(rest) if value is None else value for value in held))
