from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ._activation import Pointwise
from ._machine import StructuredMachine
from ._operators import Dense
from ._partition import Partition


class DenseMachine(StructuredMachine):
    """A multi-layer perceptron with every shortcut: y = W z + y0, z = σ(y) + z0 on points (..., channels).

    `sizes` are the dimensions of the blocks I_0 … I_n and `weight` is (channels, channels), `[out, in]`.

    >>> machine = DenseMachine((2, 16, 16, 1), "tanh")
    >>> z = machine(torch.randn(32, 2))
    >>> output = machine.split(z)[-1]
    >>> output.shape
    torch.Size([32, 1])
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str | Pointwise | Sequence[str | Pointwise] = "tanh",
        *,
        bias: bool = True,
        connections: Literal["all", "sequential"] | Sequence[Sequence[bool]] | Tensor = "all",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ):
        partition = Partition(sizes)
        operator = Dense(partition.total)
        super().__init__(
            operator, partition, activation, bias=bias, connections=connections, device=device, dtype=dtype
        )
