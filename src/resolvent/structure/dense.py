"""The operator of dense machines."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .operator import DENSE, Form, Operator, Product, Rectangle, add_matmul, final, narrow


@final
@dataclass(frozen=True)
class Dense(Operator):
    """W of shape (n, n), `[out, in]`, on points (..., n)."""

    channels: int
    event_ndim = 1
    layout = "(..., channels)"
    ndims = range(1, 100)

    def __post_init__(self):
        object.__setattr__(self, "weight_shape", (self.channels, self.channels))

    def form(self) -> Form:
        return Form(DENSE, self.channels)

    def apply(self, W: Tensor, z: Any) -> Any:
        return z @ W.mT

    def add_product(self, y: Tensor, z: Tensor, W: Tensor, product: Product, transposed: bool) -> None:
        add_matmul(self.part(y, product.to), self.part(z, product.source), W if transposed else W.mT)

    def add_cotangent(self, Q: Tensor, v: Tensor, z: Tensor, rectangle: Rectangle) -> None:
        add_matmul(Q, narrow(v, -1, rectangle.to).mT, narrow(z, -1, rectangle.source))
