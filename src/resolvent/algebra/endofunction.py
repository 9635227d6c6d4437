"""Functions of known depth, solved by their depth sequence."""

from collections.abc import Callable

from torch import nn

from ..machine import Machine, Point


class EndofunctionMachine(Machine, nn.Module):
    """Any f of known depth d, on tensors or on dicts of tensors, solved by its depth sequence h_i = x0 + f(h_{i-1}).

    >>> import torch
    >>> f = EndofunctionMachine(lambda x: torch.stack([torch.zeros_like(x[0]), x[0].sin()]), depth=1)
    >>> f(torch.tensor([0.5, 2.0]))
    tensor([0.5000, 2.4794])
    """

    def __init__(self, fn: Callable[[Point], Point], *, depth: int):
        super().__init__()
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 0:
            raise ValueError(f"depth must be an integer of at least 0, got {depth!r}")
        self.fn = fn
        self._depth = depth

    def forward(self, x0: Point) -> Point:
        return self.resolvent(x0)

    def endofunction(self, x: Point) -> Point:
        return self.fn(x)

    def depth_at(self, x: Point = None) -> int:
        return self._depth
