"""Machines of the library's kinds made of given parameters, and their weights in one layout for all kinds."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from ..machines.kinds import KINDS
from ..machines.structured import StructuredMachine
from ..structure.activation import Activation


def made(
    machine: StructuredMachine,
    sizes: Sequence[int],
    activations: Sequence[Activation],
    connections: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    packed: bool | None = None,
) -> Any:
    """A machine like this one with these parameters, which need gradients where its own do. Nothing is drawn.

    W is given whole; it is packed if the machine's is, unless that is said.
    """
    packed = machine.system.packed if packed is None else packed
    new = blank(machine, sizes, activations, connections, "meta", packed)
    weight = new.system.packed_weight(weight) if packed else weight
    state = {new.stored: weight} if bias is None else {new.stored: weight, "bias": bias}
    new.load_state_dict({name: x.detach().clone() for name, x in state.items()}, assign=True)
    for name, parameter in new.named_parameters():
        own: Any = machine.bias if name == "bias" else getattr(machine, machine.stored)
        parameter.requires_grad_(own.requires_grad)
    return new.train(machine.training)


def packed(machine: StructuredMachine) -> Any:
    """The machine whose parameter is what is read of W and nothing else: `entries`, rectangle after rectangle.

    Solves take it as it is, and so do optimisers, which then keep no state for the rest. `weight` reads as W.
    """
    return as_packed(machine, True)


def unpacked(machine: StructuredMachine) -> Any:
    """The machine whose parameter is all of W."""
    return as_packed(machine, False)


def as_packed(machine: StructuredMachine, packed: bool) -> Any:
    kind_of(machine)
    sizes, activations = machine.partition.sizes, machine.activation.blocks
    return made(machine, sizes, activations, edges(machine), machine.weight, machine.bias, packed)


def blank(
    machine: StructuredMachine,
    sizes: Sequence[int],
    activations: Sequence[Activation],
    connections: Tensor,
    device: torch.device | str,
    packed: bool = False,
) -> Any:
    """A machine of this one's kind as it is built."""
    cls, dtype = kind_of(machine), getattr(machine, machine.stored).dtype
    options: Any = dict(bias=machine.bias is not None, device=device, dtype=dtype, packed=packed) | machine.arguments
    options |= dict(lags=len(connections) - 1) if "lags" in options else {}
    return cls(sizes, list(activations), connections=connections, **options)


def kind_of(machine: Any) -> Any:
    """Its class, which is one of the library's."""
    classes = [cls for cls, _ in KINDS.values()]
    if type(machine) not in classes:
        way_out = ": its weight is computed, remove the parametrization first" if is_parametrized(machine) else ""
        way_out = ": take its .machine" if hasattr(machine, "machine") else way_out
        raise TypeError(f"a {type(machine).__name__} is none of the library's kinds, {', '.join(KINDS)}{way_out}")
    return type(machine)


def edges(machine: StructuredMachine) -> Tensor:
    """The connections as `[lag, to, from]`, with lag 0 alone where there is no time."""
    return torch.tensor(machine.connections.matrices, device="cpu")


def read(machine: StructuredMachine) -> Tensor:
    """The mask `[lag, out, in]` of what is read, on the device of W."""
    return machine.connections.expand(machine.partition).to(getattr(machine, machine.stored).device)


def in_one_layout(machine: StructuredMachine) -> Tensor:
    """W as `[lag, out, in, tap]`, zero where it is not read, in 32 bits at least."""
    kind_of(machine)
    W = machine.weight.detach()
    W = W.to(torch.promote_types(W.dtype, torch.float32))
    W = W if machine.operator.weight_axes[0] else W.unsqueeze(0)
    return W.reshape(*W.shape[:3], -1).where(read(machine).unsqueeze(-1), 0)
