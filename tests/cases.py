"""All machines the laws run over, and the same mathematics written the naive way, to hold them to."""

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import resolvent as rv
from resolvent._activation import ACTIVATIONS
from resolvent._machine import StructuredMachine

SMOOTH = [name for name in ACTIVATIONS if name not in ("relu", "leaky_relu", "elu", "selu", "softplus")]

ALL_MACHINES: dict[str, Callable[[], StructuredMachine]] = {
    "dense": lambda: rv.DenseMachine((2, 3, 1, 2), "tanh", dtype=torch.float64),
    "dense, one block": lambda: rv.DenseMachine((3,), "sigmoid", dtype=torch.float64),
    "dense, sequential, no bias": lambda: rv.DenseMachine(
        (2, 3, 2), ["identity", "gelu", "silu"], connections="sequential", bias=False, dtype=torch.float64
    ),
    "dense, some connections": lambda: rv.DenseMachine(
        (1, 2, 2, 3),
        ["identity", "softsign", "sin", "gelu_tanh"],
        connections=[[False] * 4, [True] + [False] * 3, [False] * 4, [True, False, True, False]],
        dtype=torch.float64,
    ),
    "dense, custom activation": lambda: rv.DenseMachine((2, 2, 2), lambda y: torch.sin(y) * y, dtype=torch.float64),
}


@st.composite
def machines(draw: st.DrawFn, activations=tuple(ACTIVATIONS), dtype=torch.float64) -> StructuredMachine:
    """Any machine, with random weights, also where they are not read."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    n = len(sizes)
    lower = st.lists(st.booleans(), min_size=n * n, max_size=n * n).map(
        lambda bits: torch.tensor(bits).reshape(n, n).tril(-1)
    )
    connections: Any = draw(st.sampled_from(["all", "sequential"]) | lower)
    machine = rv.DenseMachine(
        sizes,
        draw(st.sampled_from(activations) | st.lists(st.sampled_from(activations), min_size=n, max_size=n)),
        bias=draw(st.booleans()),
        connections=connections,
        dtype=dtype,
    )
    return randomize(machine, draw(st.integers(0, 2**16)))


def randomize(machine: StructuredMachine, seed: int = 0) -> StructuredMachine:
    torch.manual_seed(seed)
    with torch.no_grad():
        machine.weight.normal_().mul_(0.5)
        if machine.bias is not None:
            machine.bias.normal_()
    return machine


def points(machine: StructuredMachine, count: int, batch: tuple[int, ...] = (3,)) -> tuple[Tensor, ...]:
    """Random points of machine space, full width."""
    shape = (*batch, machine.partition.total)
    return tuple(torch.randn(shape, dtype=machine.weight.dtype) for _ in range(count))


class _Solve(torch.nn.Module):
    def __init__(self, machine: StructuredMachine):
        super().__init__()
        self.machine = machine

    def forward(self, y0, z0):
        return self.machine.solve(y0, z0)


def functional(machine: StructuredMachine):
    """(y0, z0, *parameters) ↦ (y, z), and the parameters' values."""
    module = _Solve(machine)
    parameters = {name: p.detach().clone() for name, p in module.named_parameters()}

    def function(y0, z0, *values):
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), (y0, z0))

    return function, tuple(parameters.values())


def read_part(machine: StructuredMachine) -> Tensor:
    """True where W is read, entry by entry."""
    owner = [i for i, size in enumerate(machine.partition.sizes) for _ in range(size)]
    mask = torch.zeros(machine.weight.shape, dtype=torch.bool)
    for c, i in enumerate(owner):
        for k, j in enumerate(owner):
            mask[c, k] = machine.connections[i][j]
    return mask


def apply_weight(machine: StructuredMachine, weight: Tensor, z: Tensor) -> Tensor:
    """W z with the whole masked matrix."""
    return z @ (weight * read_part(machine)).mT


def apply_transpose(machine: StructuredMachine, weight: Tensor, v: Tensor) -> Tensor:
    """W* v with the whole masked matrix."""
    return v @ (weight * read_part(machine))


def naive_solve(
    machine: StructuredMachine, weight: Tensor, bias: Tensor | None, y0: Tensor, z0: Tensor
) -> tuple[Tensor, Tensor]:
    """The program a user would write: a list of blocks and torch.cat, differentiated by autograd."""
    blocks = machine.partition.blocks
    if bias is not None:
        y0 = y0 + bias
    ys: list[Tensor] = []
    zs: list[Tensor] = []
    for i, rows in enumerate(blocks):
        y = y0[..., rows]
        for j, z in enumerate(zs):
            if machine.connections[i][j]:
                y = y + z @ weight[rows, blocks[j]].mT
        ys.append(y)
        zs.append(machine.activation.blocks[i].function(y) + z0[..., rows])
    return torch.cat(ys, -1), torch.cat(zs, -1)
