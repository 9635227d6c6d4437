"""The group lasso over the parts of W: what each is worth, and the proximal step that takes the small ones away."""

from typing import Literal

import torch
from torch import Tensor

from ..machines.structured import StructuredMachine
from .made import in_one_layout, read

By = Literal["edges", "units", "lags"]


def edge_norms(machine: StructuredMachine) -> Tensor:
    """The norm of W from each block to each other one, `[lag, to, from]`, with lag 0 alone where there is no time."""
    groups, shape = _groups(machine, "edges")
    return _sums(in_one_layout(machine).square().sum(-1), groups, shape).sqrt()


@torch.no_grad()
def shrink_(machine: StructuredMachine, threshold: float, by: By = "edges", price: Tensor | None = None) -> None:
    """W becomes the minimum of ½ |W - W₀|² + t Σ √|g| price |W_g| over the groups g, in place.

    `by` "edges" a group is what one block reads of another at one lag, by "units" all that is read of a unit, by "lags"
    all that is read at a lag; |g| counts its entries. `price` has one entry for each group: `[lag, to, from]`, `[unit]`
    or `[lag]`. What is not read stays as it is.
    """
    if by not in ("edges", "units", "lags"):
        raise ValueError(f"by={by!r} is unknown: use 'edges', 'units' or 'lags'")
    if not threshold >= 0:
        raise ValueError(f"threshold must be at least 0, got {threshold}")
    W, mask, (groups, shape) = in_one_layout(machine), read(machine), _groups(machine, by)
    stored = dict(machine.named_parameters(recurse=False)).get(machine.stored)
    if stored is None:
        raise TypeError(f"{machine.stored} is computed from other parameters, as by pruning: make it one again first")
    if price is not None and (price.shape != shape or not (price >= 0).all()):
        raise ValueError(
            f"price of shape {tuple(price.shape)}: by {by}, {tuple(shape)} numbers of at least 0 are needed"
        )
    count = _sums(mask.to(W.dtype) * W.shape[-1], groups, shape)
    norm = _sums(W.square().sum(-1), groups, shape).sqrt()
    least = threshold * count.sqrt() * (1 if price is None else price.to(W))
    factor = torch.where(norm > least, 1 - least / norm, 0)
    scale = factor.flatten()[groups].where(mask, 1).unsqueeze(-1).expand_as(W)
    scale = scale.reshape(machine.operator.weight_shape)
    stored.mul_(machine.system.packed_weight(scale) if machine.system.packed else scale)


def _groups(machine: StructuredMachine, by: By) -> tuple[Tensor, torch.Size]:
    """The group of each `[lag, out, in]`, and the shape of all groups."""
    device, sizes = getattr(machine, machine.stored).device, machine.partition.sizes
    lags, n, blocks = len(machine.connections.matrices), sum(sizes), len(sizes)
    lag, unit = torch.arange(lags, device=device), torch.arange(n, device=device)
    if by == "edges":
        owner = torch.repeat_interleave(torch.tensor(sizes, device=device))
        groups = (lag[:, None, None] * blocks + owner[:, None]) * blocks + owner
        return groups, torch.Size((lags, blocks, blocks))
    if by == "units":
        return unit.expand(lags, n, n), torch.Size((n,))
    return lag[:, None, None].expand(lags, n, n), torch.Size((lags,))


def _sums(x: Tensor, groups: Tensor, shape: torch.Size) -> Tensor:
    return x.new_zeros(shape.numel()).index_add(0, groups.flatten(), x.flatten()).reshape(shape)
