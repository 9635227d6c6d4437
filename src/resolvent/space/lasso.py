"""Adam with the group lasso: steps that train a machine and take parts of it away."""

from typing import Any

import torch
from torch.optim import Optimizer

from ..machines.structured import StructuredMachine
from .made import kind_of
from .penalty import By, groups_of, parameter_of, shrink_, sums


class GroupLasso(Optimizer):
    """Steps down a loss + λ Σ √|g| |W_g| over the groups of a machine; of the bias, the loss alone.

    A group goes where the root mean square of its gradient stays below the penalty λ. It is Adam with one second moment
    for each group: so its proximal step is `shrink_`'s, with the inverse moment for a price. With moments of single
    entries, all groups vanish together.

    >>> from resolvent import DenseMachine
    >>> machine = DenseMachine((2, 8, 1))
    >>> optimizer = GroupLasso(machine, lr=1e-2, by="units")
    >>> machine(torch.randn(32, 2)).square().mean().backward()
    >>> optimizer.step(penalty=0.1)
    """

    def __init__(
        self, machine: StructuredMachine, lr: float = 3e-3, by: By = "edges", betas: tuple[float, float] = (0.9, 0.99)
    ):
        kind_of(machine)
        if not lr > 0 or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"lr={lr} must be positive, and betas={betas} two numbers from 0 to below 1")
        weight, groups_of_machine = parameter_of(machine), groups_of(machine.system, by)
        self.machine: Any = machine
        self.by: By = by
        groups, self.shape = groups_of_machine
        self.groups = groups.to(weight.device)
        others = [p for p in machine.parameters() if p is not weight]
        each = [dict(params=[weight]), dict(params=others)] if others else [dict(params=[weight])]
        super().__init__(each, dict(lr=lr, betas=betas))

    def __getstate__(self) -> dict[str, Any]:
        own = dict(machine=self.machine, by=self.by, groups=self.groups, shape=self.shape)
        return super().__getstate__() | own  # pyright: ignore  # PyTorch's gives a dictionary

    @torch.no_grad()
    def step(self, closure: Any = None, *, penalty: float = 0.0) -> Any:  # pyright: ignore  # it has a penalty
        if not penalty >= 0:
            raise ValueError(f"penalty must be at least 0, got {penalty}")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group, penalty)
        return loss

    def _update(self, p: Any, options: dict[str, Any], penalty: float) -> None:
        weight, system, state = p is self.param_groups[0]["params"][0], self.machine.system, self.state[p]
        lr, (first, second) = options["lr"], options["betas"]
        gradient = system.packed_weight(p.grad) if weight and not system.packed else p.grad
        gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))  # squares leave 16 bits
        square = gradient.square()
        if weight:
            counts = sums(torch.ones_like(square), self.groups, self.shape)
            square = sums(square, self.groups, self.shape) / counts.clamp(min=1)
        if not state:
            state.update(step=torch.zeros(()), mean=torch.zeros_like(gradient), square=torch.zeros_like(square))
        state["step"] += 1
        steps = state["step"].item()
        mean, square = state["mean"].lerp_(gradient, 1 - first), state["square"].lerp_(square, 1 - second)
        metric = (square / (1 - second**steps)).sqrt().add_(1e-8)
        change = mean / (metric.flatten()[self.groups] if weight else metric) * (lr / (1 - first**steps))
        p.sub_(system.unpacked(change) if weight and not system.packed else change)
        if weight and penalty:
            shrink_(self.machine, lr * penalty, self.by, price=(1 / metric).nan_to_num(0))  # of NaN, W is NaN by now
