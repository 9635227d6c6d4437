"""The same function from inputs to outputs, by fewer units, edges or blocks."""

from typing import Any

import torch
from torch import Tensor

from ..machines.dense import DenseMachine
from ..machines.structured import StructuredMachine
from ..structure.connections import connect
from ..structure.partition import Partition
from .connections import connected, ordered, selected
from .made import edges, in_one_layout, kind_of, made


def simplified(machine: StructuredMachine) -> Any:
    """The machine without what its outputs do not depend on: units that nothing reads, edges that are zero, constants.

    A unit that no input reaches is a constant. One that is 0 goes; another one goes into the bias, of a dense machine
    that has one: elsewhere constants differ at borders and first steps. Inputs and outputs stay.
    """
    kind_of(machine)
    alive, bias = surviving(machine)
    parts = machine.partition.sizes, machine.activation.blocks, edges(machine)
    rest = selected(made(machine, *parts, machine.weight, bias), alive)
    return _shortened(connected(rest, _nonzero(rest)))


def _shortened(machine: Any) -> Any:
    """The machine without its longest lags, if nothing reads them."""
    matrices = edges(machine)
    lags = max([0, *matrices.any(-1).any(-1).nonzero().flatten().tolist()])
    if lags == machine.connections.lags:
        return machine
    parts = machine.partition.sizes, machine.activation.blocks, matrices[: lags + 1]
    return made(machine, *parts, machine.weight[: lags + 1], machine.bias)


def surviving(machine: StructuredMachine) -> tuple[Tensor, Tensor | None]:
    """Which channels a simplified machine has, and the bias with the constants that went into it."""
    sizes, W = machine.partition.sizes, in_one_layout(machine)
    feeds = (W != 0).any(-1).any(0)
    n, inputs, outputs = sum(sizes), sizes[0], sizes[-1]
    unit = torch.arange(n, device=W.device)
    first, last = unit < inputs, unit >= n - outputs
    constant, bias = ~_reached(feeds, first) & ~last, machine.bias
    if isinstance(machine, DenseMachine):
        with torch.no_grad(), torch.autocast(W.device.type, enabled=False):
            values = machine.solve(W.new_zeros(n).to(machine.weight.dtype))[1]
        constant &= (values == 0) | (bias is not None)
        if bias is not None:
            bias = bias + W[0, :, constant, 0].to(values) @ values[constant]
    else:
        constant = _zeros(machine, feeds, constant)
    return first | (_reached((feeds & ~constant).mT, last) & ~constant), bias


def levelled(machine: StructuredMachine) -> tuple[Any, Tensor]:
    """The same units, each as early as what it reads allows, and the permutation: z' = z[..., permutation].

    A unit stands one level after the last one that it reads with a weight that is not zero; units of a level share a
    block if they share σ. Where all do, no fewer blocks order them. The first block stays the input, and the last one
    the output.
    """
    kind_of(machine)
    sizes, time_block = machine.partition.sizes, machine.connections.time_block
    feeds = (in_one_layout(machine)[:time_block] != 0).any(-1).any(0).cpu()
    owner = [i for i, size in enumerate(sizes) for _ in range(size)]
    level = [0] * len(owner)
    for c, block in enumerate(owner):
        before = feeds[c].nonzero().flatten().tolist()
        level[c] = 0 if block == 0 else max([1, *(level[i] + 1 for i in before)])
    last = max((level[c] for c, block in enumerate(owner) if block < len(sizes) - 1), default=0) + 1
    level = [last if block and block == len(sizes) - 1 else level[c] for c, block in enumerate(owner)]
    sigma = machine.activation.blocks
    keys = [(level[c], sigma.index(sigma[block])) for c, block in enumerate(owner)]
    permutation = torch.tensor(sorted(range(len(owner)), key=lambda c: keys[c]))
    groups = sorted(set(keys))
    counts = [keys.count(key) for key in groups]
    everything = connect("all", Partition(counts), machine.connections.lags, time_block)
    whole = ordered(machine, permutation, counts, [i for _, i in groups], torch.tensor(everything.matrices))
    return connected(whole, _nonzero(whole)), permutation


def _reached(feeds: Tensor, found: Tensor) -> Tensor:
    """The units that these reach, along `feeds[to, from]`; they themselves, too."""
    while not torch.equal(found, more := found | (feeds & found).any(1)):
        found = more
    return found


def _zeros(machine: StructuredMachine, feeds: Tensor, constant: Tensor) -> Tensor:
    """Of units that no input reaches, those that are 0: σ(bias) is, and so is all that they read."""
    bias = machine.weight.new_zeros(len(feeds)) if machine.bias is None else machine.bias.detach()
    parts = zip(machine.activation.blocks, bias.split(machine.partition.sizes), strict=True)
    return ~_reached(feeds, ~constant | (torch.cat([a.function(b) for a, b in parts]) != 0))


def _nonzero(machine: StructuredMachine) -> Tensor:
    """The connections `[lag, to, from]` of which some weight is not zero."""
    rows = [part.any(1) for part in (in_one_layout(machine) != 0).any(-1).split(machine.partition.sizes, 1)]
    return torch.stack(
        [torch.stack([c.any(1) for c in row.split(machine.partition.sizes, 1)], 1) for row in rows], 1
    ).cpu()
