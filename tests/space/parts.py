"""What the tests of the space share: machines with zeros in them, and their inputs and outputs."""

from typing import Any

import torch
from cases import SERVED, Case, cases
from torch import Tensor

f64: Any = dict(dtype=torch.float64)
served = cases(kinds=SERVED, widths=(1, 2, 3))


def inputs(case: Case) -> Tensor:
    return torch.randn(case.shape(case.machine.partition.sizes[0]), **f64)


def outputs(machine: Any, x: Tensor) -> Tensor:
    return machine.split(machine(x))[-1]


def sparse(case: Case, seed: int) -> Any:
    """Its machine with many blocks of W, units of W and biases that are zero."""
    machine, generator = case.machine, torch.Generator().manual_seed(seed)
    n, axes = machine.partition.total, machine.operator.weight_axes
    with torch.no_grad():
        W = machine.weight.movedim(axes, (0, 1))
        W *= (torch.rand(n, n, generator=generator) < 0.4).to(W).reshape(n, n, *(1,) * (W.ndim - 2))
        if machine.bias is not None:
            machine.bias *= (torch.rand(n, generator=generator) < 0.5).to(W)
    return machine


def read(machine: Any) -> Tensor:
    return machine.operator.mask(machine.connections.expand(machine.partition))
