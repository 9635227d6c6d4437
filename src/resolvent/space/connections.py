"""Machines with other connections or other units, made of the parameters of one that is there."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..machines.structured import StructuredMachine
from ..structure.activation import ActivationLike, as_activation
from ..structure.connections import ConnectionsLike, connect
from ..structure.partition import Partition, integer
from .made import blank, edges, kind_of, made, read


def connected(machine: StructuredMachine, connections: ConnectionsLike, *, packed: bool | None = None) -> Any:
    """The machine with these connections: W as it is where it is still read, and zero where it is newly read.

    It is packed if the machine is, or if at most a quarter of W is read, unless that is said.

    >>> from resolvent import DenseMachine
    >>> sequential = connected(DenseMachine((2, 3, 1)), "sequential")
    >>> connected(sequential, "all").weight[5:, :2]  # from the first block to the last
    tensor([[0., 0.]], grad_fn=<SliceBackward0>)
    """
    kind_of(machine)
    operator, before = machine.operator, machine.connections
    after = connect(connections, machine.partition, before.lags, before.time_block)
    both = before.expand(machine.partition) & after.expand(machine.partition)
    weight = machine.weight.where(operator.mask(both).to(machine.weight.device), 0)
    matrices, sizes = torch.tensor(after.matrices), machine.partition.sizes
    if packed is None:
        packed = (
            machine.system.packed or 4 * int(operator.mask(after.expand(machine.partition)).sum()) <= weight.numel()
        )
    return made(machine, sizes, machine.activation.blocks, matrices, weight, machine.bias, packed)


def selected(machine: StructuredMachine, keep: Tensor | Sequence[bool]) -> Any:
    """The machine of the channels that are True in `keep`, without the others; blocks that are left empty vanish.

    Of the first block, which takes the input, and of the last one something must stay.
    """
    kind_of(machine)
    sizes, kept = machine.partition.sizes, torch.as_tensor(keep, device="cpu")
    if kept.dtype != torch.bool or kept.shape != (sum(sizes),):
        came = f"{kept.dtype} of shape {tuple(kept.shape)}"
        raise ValueError(f"keep is {came}, needed is a boolean for each of the {sum(sizes)} channels: sizes={sizes}")
    left = [int(part.sum()) for part in kept.split(sizes)]
    for block, what in ((0, "first block, which takes the input"), (-1, "last block, which is the output")):
        if not left[block]:
            raise ValueError(f"keep leaves nothing of the {what}: sizes={sizes}")
    blocks = [i for i, size in enumerate(left) if size]
    return ordered(
        machine, kept.nonzero().flatten(), [left[i] for i in blocks], blocks, edges(machine)[:, blocks][:, :, blocks]
    )


def ordered(
    machine: StructuredMachine, channels: Tensor, sizes: Sequence[int], blocks: Sequence[int], connections: Tensor
) -> Any:
    """The machine of these channels in this order, in blocks of these sizes, each with the σ of a block before."""
    (out, into), channels = machine.operator.weight_axes, channels.to(machine.weight.device)
    weight = machine.weight.where(machine.operator.mask(read(machine)), 0)
    weight = weight.index_select(out, channels).index_select(into, channels)
    bias = None if machine.bias is None else machine.bias[channels]
    return made(machine, sizes, [machine.activation.blocks[i] for i in blocks], connections, weight, bias)


def inserted(machine: StructuredMachine, at: int, units: int, activation: ActivationLike = "tanh") -> Any:
    """The same function with a block of `units` more before block `at`, which is fed by all and feeds nothing yet.

    What it reads with is drawn as in a new machine; what others read it with is zero, and trains.
    """
    kind_of(machine)
    before = machine.partition.sizes
    count, sizes = len(before), [*before]
    if not 1 <= integer("at", at, minimum=1) < count:
        raise ValueError(f"at={at} must be between the input and the output, from 1 to {count - 1}: sizes={before}")
    start, units = sum(sizes[:at]), integer("units", units, minimum=1)
    activations = [*machine.activation.blocks]
    sizes.insert(at, units)
    activations.insert(at, as_activation(activation))
    whole = connect("all", Partition(sizes), machine.connections.lags, machine.connections.time_block)
    connections = torch.tensor(whole.matrices)
    old = torch.tensor([i for i in range(count + 1) if i != at])
    connections[:, old[:, None], old] = edges(machine)
    grown = blank(machine, sizes, activations, connections, machine.weight.device)
    kept = torch.tensor([c for c in range(sum(sizes)) if not start <= c < start + units], device=machine.weight.device)
    weight = grown.weight.detach()
    W, there = (x.movedim(machine.operator.weight_axes, (0, 1)) for x in (weight, machine.weight.detach()))
    W[:, start : start + units] = 0
    W[kept[:, None], kept] = there
    bias = None if machine.bias is None else grown.bias.detach().index_copy(0, kept, machine.bias.detach())
    return made(machine, sizes, activations, connections, weight, bias)
