"""A structured machine as an algebraic sum: one layer for each σ of a block, one for each row of blocks of W."""

from typing import Any

import torch
from torch import nn

from ..algebra.sum import Layer, Sum
from ..structure.operator import Rectangle, Region
from ..sweep.plan import Activated
from ..sweep.system import System


class _Row(nn.Module):
    """The z of some blocks ↦ Σ W[to, source] z. It shares the machine's weight."""

    def __init__(self, machine: Any, region: Region, sources: list[tuple[Region, list[int]]]):
        super().__init__()
        self.machine, self.region, self.sources = machine, region, sources

    def forward(self, *zs: Any) -> Any:
        operator, effects = self.machine.operator, []
        for z, (source, lags) in zip(zs, self.sources, strict=True):
            rectangle = Rectangle(-1, range(lags[0], lags[-1] + 1), self.region.channels, source.channels)
            W = operator.entries(self.machine.weight, rectangle)
            effects.append(operator.edge(W, z, self.region, source, lags))
        return torch.stack(effects).sum(0)


def blocks_of(system: System, time_steps: int) -> dict[str, Activated]:
    """The blocks in their order, named `0`, `1`, … or, with time blocks, `0.0`, `0.1`, …, `1.0`, …"""
    steps = [step for step in system.unrolled(time_steps, 0) if isinstance(step, Activated)]
    starts = {start: k for k, start in enumerate(dict.fromkeys(step.region.times.start for step in steps))}
    if len(starts) == 1:
        return {str(step.block): step for step in steps}
    return {f"{starts[step.region.times.start]}.{step.block}": step for step in steps}


def expand(machine: Any, time_steps: int, prefix: str) -> Sum:
    blocks = blocks_of(machine.system, time_steps)
    layers = []
    for name, (region, i) in blocks.items():
        sources = {
            other: [
                lag
                for lag, matrix in enumerate(machine.connections.matrices)
                if matrix[i][j] and _meet(region.times, past.times, lag)
            ]
            for other, (past, j) in blocks.items()
        }
        feeding = {other: lags for other, lags in sources.items() if lags}
        y, z = f"{prefix}y{name}", f"{prefix}z{name}"
        if feeding:
            row = _Row(machine, region, [(blocks[other].region, lags) for other, lags in feeding.items()])
            layers.append(
                Layer(row, reads=[f"{prefix}z{other}" for other in feeding], writes=y, name=f"{prefix}W{name}")
            )
        sigma = machine.activation.blocks[i].function
        layers.append(Layer(sigma, reads=y, writes=z, name=f"{prefix}σ{name}"))
    return Sum(layers)


def _meet(to: range, source: range, lag: int) -> bool:
    """Is a step of `to` that lag after a step of `source`."""
    return max(to.start, source.start + lag) < min(to.stop, source.stop + lag)
