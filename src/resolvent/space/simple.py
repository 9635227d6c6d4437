"""The same function from inputs to outputs, by fewer units, edges or blocks."""

from typing import Any

import torch
from torch import Tensor

from ..machines.dense import DenseMachine
from ..machines.structured import StructuredMachine
from .connections import connected, ordered, selected
from .made import entries, made


def simplified(machine: StructuredMachine) -> Any:
    """The machine without what its outputs do not depend on: units that nothing reads, edges that are zero, constants.

    A unit that no input reaches is a constant. One that is 0 goes; another one goes into the bias, of a dense machine
    that has one: elsewhere constants differ at borders and first steps. Inputs and outputs stay.
    """
    sizes, W = machine.partition.sizes, entries(machine)
    feeds = (W != 0).any(-1).any(0)
    n, inputs, outputs = sum(sizes), range(sizes[0]), range(sum(sizes) - sizes[-1], sum(sizes))
    constant = ~reached(feeds, inputs)
    constant[list(outputs)] = False
    values = torch.zeros_like(W[0, 0, :, 0])
    if isinstance(machine, DenseMachine):
        values = machine(torch.zeros(n, dtype=W.dtype, device=W.device)).detach()
        constant &= (values == 0) | (machine.bias is not None)
    else:
        constant &= zeros(machine, feeds, constant)
    values = values.where(constant, 0)
    bias = machine.bias if machine.bias is None else machine.bias + W.sum((0, 3)) @ values
    feeds = feeds & ~constant
    alive = reached(feeds.mT, outputs) & ~constant
    alive[list(inputs)] = True
    with_bias = made(
        machine, sizes, machine.activation.blocks, torch.tensor(machine.connections.matrices), machine.weight, bias
    )
    rest = selected(with_bias, alive)
    return connected(rest, _nonzero(rest))


def levelled(machine: StructuredMachine) -> tuple[Any, Tensor]:
    """The same units in the fewest blocks that order them, and the permutation: z' = z[..., permutation].

    A unit stands one level after the last one that it reads with a weight that is not zero; units of a level share a
    block if they share σ. The first block stays the input, and the last one the output.
    """
    sizes, time_block = machine.partition.sizes, machine.connections.time_block
    feeds = (entries(machine)[:time_block] != 0).any(-1).any(0).cpu()
    owner = [i for i, size in enumerate(sizes) for _ in range(size)]
    level = [0] * len(owner)
    for c, block in enumerate(owner):
        before = feeds[c].nonzero().flatten().tolist()
        level[c] = 0 if block == 0 else max([1, *(level[i] + 1 for i in before)])
    last = max((level[c] for c, block in enumerate(owner) if block < len(sizes) - 1), default=0) + 1
    level = [last if block == len(sizes) - 1 > 0 else level[c] for c, block in enumerate(owner)]
    sigma = machine.activation.blocks
    keys = [(level[c], sigma.index(sigma[block])) for c, block in enumerate(owner)]
    permutation = torch.tensor(sorted(range(len(owner)), key=lambda c: keys[c]))
    groups = sorted(set(keys))
    counts = [keys.count(key) for key in groups]
    n = len(groups)
    everything = torch.ones(len(machine.connections.matrices), n, n, dtype=torch.bool)
    everything[:time_block] = everything[:time_block].tril(-1)
    whole = ordered(machine, permutation, counts, [i for _, i in groups], everything)
    return connected(whole, _nonzero(whole)), permutation


def reached(feeds: Tensor, start: range) -> Tensor:
    """The units that these reach, along `feeds[to, from]`; they themselves, too."""
    found = torch.zeros(len(feeds), dtype=torch.bool, device=feeds.device)
    found[list(start)] = True
    while not torch.equal(found, more := found | (feeds & found).any(1)):
        found = more
    return found


def zeros(machine: StructuredMachine, feeds: Tensor, constant: Tensor) -> Tensor:
    """Of units that no input reaches, those that are 0: σ(bias) is, and so is all that they read."""
    bias = torch.zeros_like(entries(machine)[0, 0, :, 0]) if machine.bias is None else machine.bias.detach()
    values = [
        a.function(b) for a, b in zip(machine.activation.blocks, bias.split(machine.partition.sizes), strict=True)
    ]
    zero = constant & (torch.cat(values) == 0)
    while not torch.equal(zero, fewer := zero & ~(feeds & ~zero).any(1)):
        zero = fewer
    return zero


def _nonzero(machine: StructuredMachine) -> Tensor:
    """The connections `[lag, to, from]` of which some weight is not zero."""
    rows = [part.any(1) for part in (entries(machine) != 0).any(-1).split(machine.partition.sizes, 1)]
    return torch.stack(
        [torch.stack([c.any(1) for c in row.split(machine.partition.sizes, 1)], 1) for row in rows], 1
    ).cpu()
