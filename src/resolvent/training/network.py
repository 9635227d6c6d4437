"""A network between features and outputs, and the classical one with as many parameters."""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..machines.convolutional import ConvMachine
from ..machines.dense import DenseMachine
from ..machines.kinds import KINDS
from ..machines.network import Network
from ..machines.structured import StructuredMachine
from ..space.penalty import edge_norms
from ..structure.connections import connect
from ..structure.partition import Partition
from .data import available_memory


class Model(Network):
    """A network on data as it comes: the output of a row, at each step of a series, or as a mean over an image."""

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        if not isinstance(self.machine, ConvMachine):
            return super().forward(x.flatten(1) if isinstance(self.machine, DenseMachine) else x)
        if len(self.machine.operator.weight_shape) == 3:  # a series, (batch, time, channels)
            return super().forward(x.mT).mT
        return super().forward(x).flatten(2).mean(2)


class Prediction(nn.Module):
    """What an output says: the probability of each class, or a number in the target's own units."""

    def __init__(self, machine: StructuredMachine, classes: bool, mean: float, scale: float):
        super().__init__()
        self.network, self.classes, self.mean, self.scale = Model(machine), classes, mean, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.of(self.network(x))

    def of(self, output: Tensor) -> Tensor:
        return output.softmax(-1) if self.classes else output * self.scale + self.mean


class StepPrediction(Prediction):
    """One step of a recurrent machine: from the inputs at a step and the state to the prediction and the next state."""

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        machine: Any = self.network.machine
        z, state = machine.step(x, state)
        return self.of(z[..., -machine.partition.sizes[-1] :]), state


def build(
    kind: str,
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    activation: str,
    connections: Any,
    **options: Any,
) -> Model:
    """A network of that kind."""
    taps = options.get("lags", 0) + 1 if kind == "recurrent" else prod(_pair(options.get("kernel_size", 1)))
    needed = 4 * 8 * taps * (inputs + sum(hidden) + outputs) ** 2  # W with its gradient, Adam's moments and copies
    if needed > available_memory():
        sizes = (inputs, *hidden, outputs)
        raise ValueError(f"a {kind} machine of sizes={sizes} needs about {needed / 2**30:.1f} GiB of memory to train")
    network = getattr(Model, kind)
    return network(inputs, hidden, outputs, activation, connections=connections, **options)


def _pair(kernel_size: int | tuple[int, ...]) -> tuple[int, ...]:
    return (kernel_size,) if isinstance(kernel_size, int) else kernel_size


def parameters_read(machine: StructuredMachine) -> int:
    """The entries of W that are read, and the bias."""
    return machine.system.entries + (0 if machine.bias is None else machine.bias.numel())


def arithmetic(machine: StructuredMachine) -> int:
    """Multiplications and additions for one row, pixel or step."""
    return 2 * machine.system.entries


def shortcuts(machine: StructuredMachine) -> list[tuple[str, float]]:
    """The connections that a sequential network has not, and the norms of their weights, largest first."""
    connections, norms = machine.connections, edge_norms(machine)
    classical = connect("sequential", machine.partition, connections.lags, connections.time_block)
    more = torch.tensor(connections.matrices) & ~torch.tensor(classical.matrices)
    found = [
        (f"{j} → {i}" + f" at lag {lag}" * bool(lag), norms[lag, i, j].item()) for lag, i, j in more.nonzero().tolist()
    ]
    return sorted(found, key=lambda shortcut: -shortcut[1])


def sequential_like(machine: StructuredMachine) -> Model:
    """The classical network of the same kind and depth, wider by a factor that makes the parameters as many."""
    inputs, *hidden, outputs = machine.partition.sizes
    lags, time_block = machine.connections.lags, machine.connections.time_block

    def sizes(width: int) -> tuple[int, ...]:
        return inputs, *(max(1, round(size * width / max(hidden))) for size in hidden), outputs

    def distance(width: int) -> int:
        partition = Partition(sizes(width))
        matrices = connect("sequential", partition, lags, time_block).matrices
        return abs(_count(partition.sizes, matrices) * _taps(machine) + partition.total - parameters_read(machine))

    most = 2
    while distance(most) < distance(most // 2):
        most *= 2
    width = min(range(max(1, most // 4), most + 1), key=distance)
    names = [activation.name for activation in machine.activation.blocks]
    return Model(KINDS[machine.kind][0](sizes(width), names, connections="sequential", **machine.arguments))


def _taps(machine: StructuredMachine) -> int:
    return prod(machine.operator.weight_shape[2:]) if isinstance(machine, ConvMachine) else 1


def _count(sizes: Sequence[int], matrices: Sequence[Any]) -> int:
    each = torch.tensor(sizes, dtype=torch.float64)
    return int(torch.einsum("lij,i,j->", torch.tensor(matrices, dtype=torch.float64), each, each).item())
