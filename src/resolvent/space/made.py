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
) -> Any:
    """A machine like this one with these parameters, which need gradients where its own do. Nothing is drawn."""
    new = blank(machine, sizes, activations, connections, device="meta")
    state = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    new.load_state_dict({name: x.detach().clone() for name, x in state.items()}, assign=True)
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(getattr(machine, name).requires_grad)
    return new.train(machine.training)


def blank(
    machine: StructuredMachine,
    sizes: Sequence[int],
    activations: Sequence[Activation],
    connections: Tensor,
    device: torch.device | str,
) -> Any:
    """A machine of this one's kind as it is built."""
    cls = kind_of(machine)
    options: Any = dict(bias=machine.bias is not None, device=device, dtype=machine.weight.dtype) | machine.arguments
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
    return machine.connections.expand(machine.partition).to(machine.weight.device)


def entries(machine: StructuredMachine) -> Tensor:
    """W as `[lag, out, in, tap]`, zero where it is not read, in 32 bits at least."""
    kind_of(machine)
    W = machine.weight.detach()
    W = W.to(torch.promote_types(W.dtype, torch.float32))
    W = W if machine.operator.weight_axes[0] else W.unsqueeze(0)
    return W.reshape(*W.shape[:3], -1).where(read(machine).unsqueeze(-1), 0)
