from collections.abc import Sequence

import torch

from ..structure.activation import Pointwise
from .structured import StructuredMachine
from ..structure.operator import Dense
from ..structure.partition import ConnectionsLike, Partition, connect


class DenseMachine(StructuredMachine):
    """A multi-layer perceptron with every shortcut: y = W z + y0, z = σ(y) + z0 on points (..., channels).

    `sizes` are the dimensions of the blocks I_0 … I_n and `weight` is (channels, channels), `[out, in]`.

    >>> machine = DenseMachine((2, 16, 16, 1), "tanh")
    >>> z = machine(torch.randn(32, 2))
    >>> output = machine.split(z)[-1]
    >>> output.shape
    torch.Size([32, 1])
    """

    kind = "dense"

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str | Pointwise | Sequence[str | Pointwise] = "tanh",
        *,
        bias: bool = True,
        connections: ConnectionsLike = "all",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ):
        partition = Partition(sizes)
        super().__init__(
            Dense(partition.total),
            partition,
            activation,
            bias=bias,
            connections=connect(connections, partition),
            device=device,
            dtype=dtype,
        )
