"""Convolutional machines against networks nobody here wrote."""

from itertools import pairwise

import pytest
import torch
from cases import cases, functional, outputs_and_gradients
from hypothesis import HealthCheck, given, settings
from tolerance import assert_equal, assert_same
from torch import nn

import resolvent as rv
from resolvent.executors import native as _native
from resolvent.structure import convolution as _convolution


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("kernel_size", [3, 4, (3, 2), (5, 3, 2)])
def test_sequential_connections_are_stacked_convolutions(kernel_size):
    axes = 1 if isinstance(kernel_size, int) else len(kernel_size)
    Conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    sizes = (2, 4, 3, 1)
    machine = rv.ConvMachine(
        sizes,
        ["identity", "tanh", "relu", "identity"],
        kernel_size=kernel_size,
        connections="sequential",
        dtype=torch.float64,
    )
    convs = [Conv(i, o, kernel_size, padding="same", dtype=torch.float64) for i, o in pairwise(sizes)]
    stack = nn.Sequential(convs[0], nn.Tanh(), convs[1], nn.ReLU(), convs[2])
    edges = list(pairwise(machine.partition.blocks))
    assert machine.bias is not None
    with torch.no_grad():
        for conv, (source, to) in zip(convs, edges, strict=True):
            assert conv.bias is not None
            machine.weight[to, source] = conv.weight
            machine.bias[to] = conv.bias

    x = torch.randn(3, 2, *(5, 4, 3)[:axes], dtype=torch.float64, requires_grad=True)
    expected = stack(x)
    actual = machine.split(machine(x))[-1]
    assert_equal(actual, expected)

    seed = torch.randn_like(expected)
    theirs = torch.autograd.grad(expected, [x, *stack.parameters()], seed)
    dx, dW, db = torch.autograd.grad(actual, [x, machine.weight, machine.bias], seed)
    assert_equal([dx, *(g for source, to in edges for g in (dW[to, source], db[to]))], theirs)


WAYS = dict(
    _adjoint_is_faster=lambda *_: True,
    _column_is_faster=lambda x: x.ndim == 3,  # one axis, and no ensemble
    _products_are_faster=lambda v, z: v.ndim == 3,
)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=cases(kinds=("conv",), axes=(1, 1, 1, 2, 3)))
def test_convolutions_give_the_same_in_each_way(way, case, monkeypatch):
    """As adjoints, as columns of an image, or with products for Q, where that is faster; also for an ensemble."""
    monkeypatch.setattr(_native, "extension", None)
    points = case.points(4)
    function, parameters = functional(case.machine)
    parameters = [torch.stack([p, -p]) for p in parameters]

    def results():
        both = torch.func.vmap(function, (None, None, *[0] * len(parameters)))(*points[:2], *parameters)
        return outputs_and_gradients(case.machine, *points) | dict(zip(("ys", "zs"), both, strict=True))

    expected = results()
    with monkeypatch.context() as patch:
        patch.setattr(_convolution, way, WAYS[way])
        assert_same(results(), expected)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_thirty_blocks_neither_die_nor_explode(activation):
    machine = rv.ConvMachine((16,) * 30, ["identity"] + [activation] * 29, kernel_size=5)
    y, _ = machine.solve(torch.randn(64, 16, 100))
    scales = torch.stack([block.square().mean().sqrt() for block in machine.split(y)])
    assert scales.min() > 0.5
    assert scales.max() < 2


def test_the_dual_has_v0_which_the_papers_formula_leaves_out():
    machine = rv.ConvMachine((1, 2, 1), dtype=torch.float64)
    y, v0 = torch.randn(2, 2, 4, 6, dtype=torch.float64)
    _, v = machine.dual(y).solve(None, v0)
    y0 = torch.randn_like(y, requires_grad=True)
    solved, _ = machine.solve(y0)
    (expected,) = torch.autograd.grad(solved, y0, v0)
    _, actual = machine.dual(solved.detach()).solve(None, v0)
    assert_equal(actual, expected)
    assert not torch.equal(v, machine.dual(y).solve(torch.zeros_like(y))[1])


def test_the_repr_says_the_architecture():
    assert repr(rv.ConvMachine((2, 4), "relu", kernel_size=(3, 2))) == (
        "ConvMachine(sizes=(2, 4), activation=relu, kernel_size=(3, 2), padding=((1, 1), (0, 1)), "
        "connections=all, bias=True, reads 48 of 216 weights)"
    )


def test_an_empty_space_is_empty():
    machine = rv.ConvMachine((1, 2))
    x = torch.zeros(2, 1, 0, requires_grad=True)
    z = machine(x)
    assert z.shape == (2, 3, 0)
    z.sum().backward()


def test_backward_under_autocast_keeps_the_precision_of_the_forward_pass():
    machine = rv.ConvMachine((1, 3, 2))
    x = torch.randn(2, 1, 8)
    z = machine(x)
    (expected,) = torch.autograd.grad(z.sum(), machine.weight, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        (actual,) = torch.autograd.grad(z.sum(), machine.weight)
    assert torch.equal(actual, expected)


@pytest.mark.unchecked
def test_sizes_may_come_from_numpy():
    three = torch.tensor([3]).numpy()[0]
    assert rv.ConvMachine([three, three], kernel_size=three).weight.shape == (6, 6, 3)
