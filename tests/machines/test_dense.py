"""Dense machines against networks nobody here wrote, and their initialisation."""

from itertools import pairwise

import pytest
import torch
from tolerance import assert_equal
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import resolvent as rv


@pytest.mark.parametrize("layer", [nn.Tanh, nn.ReLU, nn.GELU])
def test_sequential_connections_are_an_mlp(layer):
    name = layer.__name__.lower()
    sizes = (3, 5, 4, 2)
    machine = rv.DenseMachine(
        sizes, ["identity", name, name, "identity"], connections="sequential", dtype=torch.float64
    )
    linears = [nn.Linear(i, o, dtype=torch.float64) for i, o in pairwise(sizes)]
    mlp = nn.Sequential(linears[0], layer(), linears[1], layer(), linears[2])
    blocks = machine.partition.blocks
    assert machine.bias is not None
    with torch.no_grad():
        for linear, source, to in zip(linears, blocks[:-1], blocks[1:], strict=True):
            machine.weight[to, source] = linear.weight
            machine.bias[to] = linear.bias

    x = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    seed = torch.randn(7, 2, dtype=torch.float64)
    expected = mlp(x)
    actual = machine.split(machine(x))[-1]
    assert_equal(actual, expected)

    theirs = torch.autograd.grad(expected, [x, *mlp.parameters()], seed)
    dx, dW, db = torch.autograd.grad(actual, [x, machine.weight, machine.bias], seed)
    ours = [dx]
    for source, to in pairwise(blocks):
        ours += [dW[to, source], db[to]]
    assert_equal(ours, theirs)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("connections", ["all", "sequential"])
def test_fifty_blocks_neither_die_nor_explode(activation, connections):
    machine = rv.DenseMachine((64,) * 50, ["identity"] + [activation] * 49, connections=connections)
    y, _ = machine.solve(torch.randn(256, 64))
    scales = torch.stack([block.square().mean().sqrt() for block in machine.split(y)])
    assert scales.min() > 0.5
    assert scales.max() < 2


def test_initial_variance_follows_each_blocks_true_fan_in():
    matrix = torch.zeros(4, 4, dtype=torch.bool)
    matrix[1, 0] = matrix[3, 0] = matrix[3, 2] = True
    machine = rv.DenseMachine((100, 50, 300, 200), "relu", connections=matrix)
    W = [machine.split(rows) for rows in machine.weight.split(machine.partition.sizes)]
    for i, j, fan_in in ((1, 0, 100), (3, 0, 400), (3, 2, 400)):
        assert W[i][j].std().item() == pytest.approx((2 / fan_in) ** 0.5, rel=0.05)
    assert machine.weight.count_nonzero() == 50 * 100 + 200 * 400
    assert machine.bias is not None
    assert machine.bias.count_nonzero() == 0


def test_unconnected_blocks_cost_no_arithmetic():
    sizes, batch = (4, 8, 16, 2), 3

    def flops(connections):
        machine = rv.DenseMachine(sizes, connections=connections)
        with FlopCounterMode(display=False) as counter:
            machine(torch.randn(batch, 4))
        return counter.get_total_flops()

    assert flops("all") == 2 * batch * (8 * 4 + 16 * 12 + 2 * 28)
    assert flops("sequential") == 2 * batch * (8 * 4 + 16 * 8 + 2 * 16)
    assert flops(torch.zeros(4, 4, dtype=torch.bool)) == 0


def test_the_repr_says_the_architecture():
    machine = rv.DenseMachine((2, 4, 1), ["identity", "tanh", "identity"])
    assert repr(machine) == (
        "DenseMachine(sizes=(2, 4, 1), activation=[identity, tanh, identity], connections=all, bias=True, "
        "reads 14 of 49 weights)"
    )
    some = rv.DenseMachine(
        (2, 4, 1), "relu", connections=[[False] * 3, [True] + [False] * 2, [False] * 3], bias=False, packed=True
    )
    assert repr(some) == (
        "DenseMachine(sizes=(2, 4, 1), activation=relu, connections=1 of 3, bias=False, packed=True, "
        "reads 8 of 49 weights)"
    )
