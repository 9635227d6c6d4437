from collections.abc import Sequence
from typing import Any

import torch

from ..structure.activation import ActivationLike
from ..structure.connections import ConnectionsLike
from ..structure.dense import Dense
from ..structure.partition import Partition
from .structured import StructuredMachine


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
        activation: ActivationLike | Sequence[ActivationLike] = "tanh",
        *,
        bias: bool = True,
        connections: ConnectionsLike = "all",
        packed: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ):
        options: Any = dict(bias=bias, connections=connections, packed=packed, device=device, dtype=dtype)
        super().__init__(Dense(Partition(sizes).total), sizes, activation, **options)
