"""A ready network: from an input to an output, an ordinary layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..structure.activation import Pointwise
from .convolutional import ConvMachine
from .dense import DenseMachine
from .recurrent import RecurrentMachine
from .structured import StructuredMachine


class Network(nn.Module):
    """The last block of a machine as a function of its first: with identity at both ends, a network with shortcuts.

    Inputs and outputs have the layout of the machine: (..., channels), (batch, channels, *space) or (batch, time,
    channels). `net.machine` is the machine, and options that are not named here are its own.

    >>> import torch
    >>> net = Network.dense(2, (16, 16), 1, activation="tanh")
    >>> net(torch.randn(32, 2)).shape
    torch.Size([32, 1])
    """

    def __init__(self, machine: StructuredMachine):
        super().__init__()
        self.machine = machine

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        return self.machine.split(self.machine(x, **options))[-1]

    @classmethod
    def dense(
        cls, inputs: int, hidden: Sequence[int], outputs: int, activation: str | Pointwise = "tanh", **options: Any
    ) -> "Network":
        """A perceptron in which each layer sees all before it."""
        return cls(DenseMachine((inputs, *hidden, outputs), _between(activation, hidden), **options))

    @classmethod
    def conv(
        cls, inputs: int, hidden: Sequence[int], outputs: int, activation: str | Pointwise = "relu", **options: Any
    ) -> "Network":
        """A convolutional network in which each layer sees all before it."""
        return cls(ConvMachine((inputs, *hidden, outputs), _between(activation, hidden), **options))

    @classmethod
    def recurrent(
        cls,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: str | Pointwise = "tanh",
        *,
        connections: Any = "recurrent",
        **options: Any,
    ) -> "Network":
        """A recurrent network in which each layer sees all before it and, at later steps, hidden layers themselves."""
        machine = RecurrentMachine(
            (inputs, *hidden, outputs), _between(activation, hidden), connections=connections, **options
        )
        return cls(machine)


def _between(activation: str | Pointwise, hidden: Sequence[int]) -> list[str | Pointwise]:
    return ["identity", *[activation] * len(hidden), "identity"]
