"""What `bench --jets` measures: networks, and the derivatives by the input that a loss is made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import resolvent as rv

Build = Callable[..., rv.Network]


@dataclass(frozen=True)
class Operator:
    """What stands under the mean square: `residual` of the `derivatives`, or LAPLACIAN or BIHARMONIC.

    With `along`, the variable is a step along a direction given at each point.
    """

    name: str
    order: int
    derivatives: str = ""
    names: str = ""
    residual: Callable[..., Any] = lambda u: u
    along: bool = False


LAPLACIAN = Operator("Laplacian", 2)
BIHARMONIC = Operator("biharmonic", 4)
BURGERS = Operator("{t, x, xx}", 2, "1, t, x, xx", "tx", lambda u, t, x, xx: t + u * x - 0.01 * xx)
KORTEWEG_DE_VRIES = Operator("{t, x, xxx}", 3, "1, t, x, xxx", "tx", lambda u, t, x, xxx: t + 6 * u * x + xxx)
ALONG = Operator("{a, aa}", 2, "a, aa", "a", lambda a, aa: a + aa, along=True)


@dataclass(frozen=True)
class JetCase:
    """A network, the shape of one of its points, and what is asked of it."""

    operator: Operator
    size: str
    build: Build
    point: tuple[int, ...]
    batch: int

    @property
    def name(self) -> str:
        return f"{self.operator.name}, {self.size}, batch {self.batch:,}"

    def make(self, dtype: torch.dtype) -> tuple[rv.Network, Tensor, Tensor]:
        """The network, whose biases are not zero, points, and a direction at each."""
        torch.manual_seed(0)
        net: Any = self.build(dtype=dtype)
        with torch.no_grad():
            net.machine.bias[net.machine.partition.sizes[0] :].normal_(std=0.1)
        x, direction = torch.randn(2, self.batch, *self.point, dtype=dtype)
        return net, x, direction


def dense(inputs: int, *hidden: int) -> tuple[Build, tuple[int, ...]]:
    return lambda **options: rv.Network.dense(inputs, hidden, 1, "tanh", **options), (inputs,)


def recurrent(inputs: int, *hidden: int, steps: int) -> tuple[Build, tuple[int, ...]]:
    return lambda **options: rv.Network.recurrent(inputs, hidden, 1, "tanh", lags=1, **options), (steps, inputs)


def conv(inputs: int, *hidden: int, positions: int) -> tuple[Build, tuple[int, ...]]:
    return lambda **options: rv.Network.conv(inputs, hidden, 1, "tanh", kernel_size=5, **options), (inputs, positions)


_ROWS: list[tuple[Operator, str, Build, tuple[int, ...], int]] = [
    (LAPLACIAN, "2-D 4×32", *dense(2, *[32] * 4), 1024),
    (LAPLACIAN, "3-D 4×64", *dense(3, *[64] * 4), 1024),
    (LAPLACIAN, "10-D 3×64", *dense(10, *[64] * 3), 256),
    (LAPLACIAN, "100-D 3×128", *dense(100, *[128] * 3), 64),
    (LAPLACIAN, "2-D 8×20", *dense(2, *[20] * 8), 4096),
    (BURGERS, "5×50", *dense(2, *[50] * 5), 2048),
    (KORTEWEG_DE_VRIES, "4×32", *dense(2, *[32] * 4), 1024),
    (BIHARMONIC, "2-D 4×32", *dense(2, *[32] * 4), 1024),
    (ALONG, "recurrent 3×32, 16 steps", *recurrent(2, *[32] * 3, steps=16), 256),
    (ALONG, "convolution 3×16, 64 positions", *conv(2, *[16] * 3, positions=64), 256),
]
SMALL = 64
"""Points where all is overhead."""
CASES = [
    JetCase(operator, size, build, point, batch)
    for operator, size, build, point, large in _ROWS
    for batch in dict.fromkeys((large, SMALL))
]
