"""All machines the laws run over, and the same mathematics written the naive way, to hold them to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from graph import GraphMachine, karate
from hypothesis import strategies as st
from torch import Tensor

import resolvent as rv
from resolvent.machines.structured import StructuredMachine
from resolvent.structure.activation import ACTIVATIONS


@dataclass
class Case:
    """A machine and the points to try it on: their extent in space, time or nodes, and their batch."""

    machine: Any
    extent: tuple[int, ...] = ()
    batch: tuple[int, ...] = (3,)

    def shape(self, channels: int) -> tuple[int, ...]:
        first = isinstance(self.machine, rv.ConvMachine)
        return (*self.batch, channels, *self.extent) if first else (*self.batch, *self.extent, channels)

    def points(self, count: int) -> tuple[Tensor, ...]:
        """Random points of machine space."""
        shape = self.shape(self.machine.partition.total)
        return tuple(torch.randn(shape, dtype=self.machine.weight.dtype) for _ in range(count))

    @property
    def channel_axis(self) -> int:
        return -1 - len(self.extent) if isinstance(self.machine, rv.ConvMachine) else -1

    @property
    def depth(self) -> int:
        return self.machine.depth_at(self.points(1)[0])


def directed_graph(nodes: int) -> Tensor:
    """Of the first members of the club, those who came later see those before: A is not its own adjoint."""
    return karate()[0][:nodes, :nodes].tril()


SOME_CONNECTIONS = [[False] * 4, [True] + [False] * 3, [False] * 4, [True, False, True, False]]
f64: Any = dict(dtype=torch.float64)

ALL_MACHINES: dict[str, Callable[[], Case]] = {
    "dense": lambda: Case(rv.DenseMachine((2, 3, 1, 2), "tanh", **f64)),
    "dense, one block": lambda: Case(rv.DenseMachine((3,), "sigmoid", **f64)),
    "dense, sequential, no bias": lambda: Case(
        rv.DenseMachine((2, 3, 2), ["identity", "gelu", "silu"], connections="sequential", bias=False, **f64)
    ),
    "dense, some connections": lambda: Case(
        rv.DenseMachine((1, 2, 2, 3), ["identity", "softsign", "sin", "gelu_tanh"], connections=SOME_CONNECTIONS, **f64)
    ),
    "dense, custom activation": lambda: Case(rv.DenseMachine((2, 2, 2), lambda y: torch.sin(y) * y, **f64)),
    "dense, packed": lambda: Case(
        rv.DenseMachine(
            (1, 2, 2, 3), ["identity", "tanh", "sin", "gelu"], connections=SOME_CONNECTIONS, packed=True, **f64
        )
    ),
    "conv": lambda: Case(rv.ConvMachine((2, 1, 2), "tanh", **f64), (4,)),
    "conv, packed": lambda: Case(rv.ConvMachine((2, 1, 2), "tanh", packed=True, **f64), (4,)),
    "conv, causal, kernel longer than the signal": lambda: Case(
        rv.ConvMachine((1, 2), "silu", kernel_size=5, padding="causal", bias=False, **f64), (3,)
    ),
    "conv, two axes, some connections": lambda: Case(
        rv.ConvMachine(
            (1, 1, 1, 1), ["identity", "tanh", "sin", "gelu"], kernel_size=(2, 3), connections=SOME_CONNECTIONS, **f64
        ),
        (3, 2),
    ),
    "conv, three axes, uneven padding": lambda: Case(
        rv.ConvMachine((1, 1), "sigmoid", kernel_size=(2, 1, 3), padding=[(1, 0), (0, 0), (0, 2)], **f64), (2, 1, 3)
    ),
    "recurrent": lambda: Case(rv.RecurrentMachine((1, 2, 1), "tanh", lags=2, **f64), (4,)),
    "recurrent, packed": lambda: Case(rv.RecurrentMachine((1, 2, 1), "tanh", lags=2, packed=True, **f64), (4,)),
    "recurrent, sequential": lambda: Case(
        rv.RecurrentMachine((2, 2, 1), "tanh", connections="sequential", bias=False, **f64), (3,)
    ),
    "recurrent, time blocks": lambda: Case(
        rv.RecurrentMachine((1, 1, 2), ["sin", "tanh", "gelu"], lags=4, time_block=2, **f64), (5,)
    ),
    "recurrent, many lags": lambda: Case(rv.RecurrentMachine((1, 1), "tanh", lags=17, **f64), (10,)),
    "recurrent, time block longer than the sequence": lambda: Case(
        rv.RecurrentMachine((1, 2), "softsign", lags=5, time_block=4, **f64), (3,)
    ),
    # In blocks of one channel, is_grads_batched loses that axis of a matrix product in its second derivatives.
    "graph": lambda: Case(GraphMachine((2, 3, 2), directed_graph(5), **f64), (5,)),
}
SERVED = ("dense", "conv", "recurrent")
"""Kinds that executors know, and files."""


@st.composite
def cases(
    draw: st.DrawFn,
    activations=tuple(ACTIVATIONS),
    kinds=(*SERVED, "graph"),
    widths=(1, 2, 3),
    axes=(1, 2, 3),
) -> Case:
    """Any machine, with random weights, also where they are not read, and any extent and batch."""
    kind = draw(st.sampled_from(kinds))
    sizes = draw(st.lists(st.sampled_from(widths), min_size=1, max_size=6 if kind == "dense" else 4))
    n = len(sizes)
    arguments: dict[str, Any] = dict(
        activation=draw(st.sampled_from(activations) | st.lists(st.sampled_from(activations), min_size=n, max_size=n)),
        bias=draw(st.booleans()),
        dtype=torch.float64,
    )
    batch = draw(st.sampled_from([(), (0,), (1,), (3,)] + [(2, 3)] * (kind == "dense")))
    matrix = st.lists(st.booleans(), min_size=n * n, max_size=n * n).map(lambda b: torch.tensor(b).reshape(n, n))
    named = st.sampled_from(["all", "sequential"])
    if kind == "recurrent":
        lags, time_block = draw(st.integers(0, 4)), draw(st.integers(1, 4))
        per_lag = st.lists(matrix, min_size=lags + 1, max_size=lags + 1).map(
            lambda ms: torch.stack([m.tril(-1) if lag < time_block else m for lag, m in enumerate(ms)])
        )
        single = matrix if lags >= time_block else matrix.map(lambda m: m.tril(-1))
        connections: Any = draw(named | single | per_lag if lags else named | single)
        machine = rv.RecurrentMachine(sizes, lags=lags, time_block=time_block, connections=connections, **arguments)
        extent = (draw(st.integers(1, 7)),)
    else:
        arguments["connections"] = draw(named | matrix.map(lambda m: m.tril(-1)))
        if kind == "dense":
            machine, extent = rv.DenseMachine(sizes, **arguments), ()
        elif kind == "graph":
            extent = (draw(st.integers(1, 5)),)
            machine = GraphMachine(tuple(sizes), directed_graph(*extent), **arguments)
        else:
            ndim = draw(st.sampled_from(axes))
            kernel = draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim))
            before = [draw(st.integers(0, k - 1)) for k in kernel]
            pairs = [(b, k - 1 - b) for b, k in zip(before, kernel, strict=True)]
            padding: Any = draw(st.just("same") | st.just(pairs))
            machine = rv.ConvMachine(sizes, kernel_size=kernel, padding=padding, **arguments)
            extent = tuple(draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    return Case(randomize(machine, draw(st.integers(0, 2**16))), extent, batch)


def randomize(machine: StructuredMachine, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    with torch.no_grad():
        getattr(machine, machine.stored).normal_().mul_(0.5)
        if machine.bias is not None:
            machine.bias.normal_()
    return machine


def outputs_and_gradients(machine, y0, z0, v0, u0, **options):
    parameters = list(machine.parameters())
    points = [x.clone().requires_grad_() for x in (y0, z0) if x is not None]
    y, z = machine.solve(points[0], points[1] if len(points) == 2 else None, **options)
    gradients = torch.autograd.grad((y, z), [*points, *parameters], (v0, u0), allow_unused=True)
    with torch.no_grad():
        u, v = machine.dual(y).solve(u0, v0)
        dy, dz = machine.tangent(y).solve(u0, v0)
        Q = machine.weight_cotangent(v, z)
    return dict(y=y, z=z, u=u, v=v, dy=dy, dz=dz, Q=Q) | {f"gradient {i}": g for i, g in enumerate(gradients)}


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
    for out, i in enumerate(owner):
        for into, j in enumerate(owner):
            for lag, matrix in enumerate(machine.connections.matrices):
                index = (lag, out, into) if isinstance(machine, rv.RecurrentMachine) else (out, into)
                mask[index] = matrix[i][j]
    return mask


def apply_weight(machine: Any, weight: Tensor, z: Tensor) -> Tensor:
    """W z with the whole masked weight."""
    weight = weight * read_part(machine)
    if not isinstance(machine, rv.RecurrentMachine):
        return _without_time(machine, weight, z)
    shifted = [F.pad(z, (0, 0, lag, 0))[..., : z.shape[-2], :] for lag in range(len(weight))]
    return torch.stack([past @ matrix.mT for past, matrix in zip(shifted, weight, strict=True)]).sum(0)


def _without_time(machine: Any, weight: Tensor, z: Tensor) -> Tensor:
    if isinstance(machine, rv.DenseMachine):
        return z @ weight.mT
    if isinstance(machine, GraphMachine):
        return torch.einsum("ts,...si,oi->...to", machine.operator.A.to(z), z, weight)
    padding = machine.operator.padding
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(padding) - 1]
    return convolve(F.pad(z, [p for pair in reversed(padding) for p in pair]), weight)


def apply_transpose(machine: Any, weight: Tensor, v: Tensor) -> Tensor:
    """W* v, as autograd sees it."""
    return torch.func.vjp(lambda z: apply_weight(machine, weight, z), torch.zeros_like(v))[1](v)[0]


def naive_solve(machine: Any, weight: Tensor, bias: Tensor | None, y0: Tensor, z0: Tensor) -> tuple[Tensor, Tensor]:
    """The program a user would write: a list of blocks and torch.cat, differentiated by autograd."""
    blocks, sigma, matrices = machine.partition.blocks, machine.activation.blocks, machine.connections.matrices
    if isinstance(machine, rv.RecurrentMachine):
        y0 = y0 if bias is None else y0 + bias
        ys, zs = [], []
        for t in range(y0.shape[-2]):
            ys.append([])
            zs.append([])
            for i, rows in enumerate(blocks):
                y = y0[..., t, rows]
                for lag, matrix in enumerate(matrices[: t + 1]):
                    for j, z in enumerate(zs[t - lag]):
                        if matrix[i][j]:
                            y = y + z @ weight[lag, rows, blocks[j]].mT
                ys[t].append(y)
                zs[t].append(sigma[i].function(y) + z0[..., t, rows])
        y, z = (torch.stack([torch.cat(step, -1) for step in steps], -2) for steps in (ys, zs))
        return y, z
    axis = machine.operator.channel_axis
    if bias is not None:
        y0 = y0 + bias.reshape(-1, *(1,) * (-1 - axis))
    ys, zs = [], []
    for i, (y, rows) in enumerate(zip(y0.split(machine.partition.sizes, axis), blocks, strict=True)):
        for j, z in enumerate(zs):
            if matrices[0][i][j]:
                part = weight[rows, blocks[j]]
                y = y + _without_time(machine, part, z)
        ys.append(y)
        zs.append(sigma[i].function(y) + z0.split(machine.partition.sizes, axis)[i])
    return torch.cat(ys, axis), torch.cat(zs, axis)
