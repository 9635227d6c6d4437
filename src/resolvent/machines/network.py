"""A ready network: from an input to an output, an ordinary layer."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..structure.activation import ActivationLike
from ..structure.jet import Jet
from ..structure.partition import integers
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

    leaf = True  # one operation where a network is traced

    def __init__(self, machine: StructuredMachine):
        super().__init__()
        self.machine = machine

    def forward(self, x: Tensor | Jet, **options: Any) -> Any:
        operator, inputs = self.machine.operator, self.machine.partition.sizes[0]
        if not isinstance(x, Tensor | Jet) or x.ndim not in operator.ndims or x.shape[operator.channel_axis] != inputs:
            came = f"has shape {tuple(x.shape)}" if isinstance(x, Tensor | Jet) else f"is a {type(x).__name__}"
            raise ValueError(f"x {came}, the network takes {inputs} channels in the layout {operator.layout}")
        outputs = self.machine.partition.sizes[-1]
        return self.machine(x, **options).narrow(operator.channel_axis, -outputs, outputs)

    @classmethod
    def dense(
        cls,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: ActivationLike | Sequence[ActivationLike] = "tanh",
        **options: Any,
    ) -> "Network":
        """A perceptron in which each layer sees all before it."""
        sigma = _between(activation, hidden)
        return cls(DenseMachine((inputs, *hidden, outputs), sigma, **options))

    @classmethod
    def conv(
        cls,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: ActivationLike | Sequence[ActivationLike] = "relu",
        **options: Any,
    ) -> "Network":
        """A convolutional network in which each layer sees all before it; `kernel_size` has one entry for each axis."""
        sigma = _between(activation, hidden)
        return cls(ConvMachine((inputs, *hidden, outputs), sigma, **options))

    @classmethod
    def recurrent(
        cls,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: ActivationLike | Sequence[ActivationLike] = "tanh",
        *,
        connections: Any = "recurrent",
        **options: Any,
    ) -> "Network":
        """A recurrent network in which each layer sees all before it and, at later steps, hidden layers themselves."""
        if options.get("lags") == 0 and connections == "recurrent":
            connections = "all"  # there is nothing to recur
        sigma = _between(activation, hidden)
        return cls(RecurrentMachine((inputs, *hidden, outputs), sigma, connections=connections, **options))


def _between(activation: Any, hidden: Sequence[int]) -> list[ActivationLike]:
    """The activation of each hidden block, which may be given one by one, between identities."""
    none = isinstance(hidden, tuple | list) and not hidden
    hidden = () if none else integers("hidden", hidden)
    each = [*activation] if isinstance(activation, list | tuple) else [activation] * len(hidden)
    if len(each) != len(hidden):
        raise ValueError(f"activation lists {len(each)} activations, {len(hidden)} hidden blocks need one each")
    return ["identity", *each, "identity"]
