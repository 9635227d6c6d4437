"""The group lasso over the parts of W: what each is worth, and the proximal step that takes the small ones away."""

from functools import lru_cache
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from ..machines.structured import StructuredMachine
from ..sweep.system import System
from .made import kind_of

By = Literal["edges", "units", "lags"]


def edge_norms(machine: StructuredMachine) -> Tensor:
    """The norm of W from each block to each other one, `[lag, to, from]`, with lag 0 alone where there is no time."""
    kind_of(machine)
    groups, shape = groups_of(machine.system, "edges")
    entries = _read(machine)
    entries = entries.to(torch.promote_types(entries.dtype, torch.float32))
    return sums(entries.square(), groups.to(entries.device), shape).sqrt()


@torch.no_grad()
def shrink_(machine: StructuredMachine, threshold: float, by: By = "edges", price: Tensor | None = None) -> None:
    """W becomes the minimum of ½ |W - W₀|² + t Σ √|g| price |W_g| over the groups g, in place.

    `by` "edges" a group is what one block reads of another at one lag, by "units" all that is read of a unit, by "lags"
    all that is read at a lag; |g| counts its entries. `price` has one entry for each group: `[lag, to, from]`, `[unit]`
    or `[lag]`. What is not read stays as it is.
    """
    if not threshold >= 0:
        raise ValueError(f"threshold must be at least 0, got {threshold}")
    kind_of(machine)
    stored, (groups, shape) = parameter_of(machine), groups_of(machine.system, by)
    if price is not None and not isinstance(price, Tensor):
        raise TypeError(f"price must be a tensor, got {type(price).__name__}")
    if price is not None and (price.shape != shape or not (price >= 0).all()):
        raise ValueError(
            f"price of shape {tuple(price.shape)}: by {by}, {tuple(shape)} numbers of at least 0 are needed"
        )
    entries, groups = _read(machine), groups.to(stored.device)
    entries = entries.to(torch.promote_types(entries.dtype, torch.float32))
    norm = sums(entries.square(), groups, shape).sqrt()
    least = threshold * sums(torch.ones_like(entries), groups, shape).sqrt() * (1 if price is None else price.to(norm))
    scale = torch.where(norm > least, 1 - least / norm, 0).flatten()[groups]
    entries = (entries * scale).to(stored.dtype)
    if not machine.system.packed:
        places = machine.system.places(stored.device)
        entries = stored.reshape(-1).index_copy(0, places, entries).view(stored.shape)
    stored.copy_(entries)


def parameter_of(machine: StructuredMachine) -> Tensor:
    """What has W, if it can be written to."""
    stored = dict(machine.named_parameters(recurse=False)).get(machine.stored)
    if stored is None:
        raise TypeError(f"{machine.stored} is computed from other parameters, as by pruning: make it one again first")
    return stored


@lru_cache(maxsize=8)  # as large as W
@torch.inference_mode(False)  # it is kept for calls outside of it
def groups_of(system: System, by: By) -> tuple[Tensor, torch.Size]:
    """The group of each entry that is read, rectangle after rectangle, and the shape of all groups."""
    if by not in get_args(By):
        raise ValueError(f"by={by!r} is unknown: use 'edges', 'units' or 'lags'")
    operator, sizes = system.operator, system.partition.sizes
    lags, n, blocks = len(system.connections.matrices), system.partition.total, len(sizes)
    cell = system.places() // prod(operator.weight_shape[operator.weight_axes[1] + 1 :])  # without the kernel
    lag, out, into = cell // n**2, cell // n % n, cell % n
    if by == "edges":
        owner = torch.repeat_interleave(torch.tensor(sizes, device="cpu"))
        return (lag * blocks + owner[out]) * blocks + owner[into], torch.Size((lags, blocks, blocks))
    return (into, torch.Size((n,))) if by == "units" else (lag, torch.Size((lags,)))


def sums(x: Tensor, groups: Tensor, shape: torch.Size) -> Tensor:
    """The sum of x over each group."""
    return x.new_zeros(shape.numel()).index_add(0, groups, x).reshape(shape)


def _read(machine: StructuredMachine) -> Tensor:
    """What is read of W, rectangle after rectangle."""
    stored = getattr(machine, machine.stored).detach()
    return stored if machine.system.packed else machine.system.packed_weight(stored)
