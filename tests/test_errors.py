"""Bad input gets an error that names the argument, what came and what was needed, and changes nothing."""

import pytest
import torch
from torch import nn

import resolvent as rv

pytestmark = pytest.mark.unchecked


def writes(y):
    return y.mul_(2)


CONSTRUCTION = [
    (dict(sizes=()), ValueError, r"sizes must be one or more positive integers, got \(\)"),
    (dict(sizes=(2, 0)), ValueError, r"sizes must be one or more positive integers, got \(2, 0\)"),
    (dict(sizes=(2, -1)), ValueError, r"sizes must be one or more positive integers, got \(2, -1\)"),
    (dict(sizes=(2, 1.5)), TypeError, r"sizes must be a sequence of integers, got \(2, 1.5\)"),
    (dict(sizes=(2, True)), TypeError, r"sizes must be a sequence of integers, got \(2, True\)"),
    (dict(sizes=3), TypeError, r"sizes must be a sequence of integers, got 3"),
    (dict(sizes="23"), TypeError, r"sizes must be a sequence of integers, got '23'"),
    (dict(activation="than"), ValueError, r"activation 'than' is unknown: use one of identity, tanh, sigmoid, relu"),
    (
        dict(activation=["tanh"]),
        ValueError,
        r"activation lists 1 activations, 3 blocks need one each: sizes=\(2, 3, 1\)",
    ),
    (dict(activation=3), TypeError, r"activation must be a name, a function or a module, got 3"),
    (
        dict(activation=torch.sum),
        ValueError,
        r"activation sum must act pointwise: input of shape \(2, 3\) gave shape \(\)",
    ),
    (dict(activation=lambda y: 0.0), ValueError, r"must act pointwise: input of shape \(2, 3\) gave float"),
    (dict(activation=nn.Softmax(-1)), ValueError, r"activation Softmax\(dim=-1\) must act pointwise: an entry"),
    (dict(activation=nn.Softmax(0)), ValueError, r"activation Softmax\(dim=0\) must act pointwise: an entry"),
    (dict(activation=nn.PReLU()), ValueError, r"activation PReLU\(num_parameters=1\) has parameters"),
    (dict(activation=writes), ValueError, r"activation writes writes to its input"),
    (dict(connections="none"), ValueError, r"connections='none' is unknown: use 'all', 'sequential' or a boolean"),
    (dict(connections=[[False]]), ValueError, r"connections has shape \(1, 1\), 3 blocks need \(3, 3\)"),
    (dict(connections=torch.zeros(3, 3)), TypeError, r"connections must be boolean, got torch.float32"),
    (
        dict(connections=[[True], [False, True]]),
        TypeError,
        r"connections must be a boolean block matrix, got \[\[True\]",
    ),
    (dict(connections=torch.eye(3) > 0), ValueError, r"connections\[0, 0\] feeds block 0 into block 0: only earlier"),
    (dict(connections=torch.ones(3, 3).triu(1) > 0), ValueError, r"connections\[0, 1\] feeds block 1 into block 0"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), CONSTRUCTION)
def test_construction(arguments, error, message):
    with pytest.raises(error, match=message):
        rv.DenseMachine(**{"sizes": (2, 3, 1), **arguments})


f32 = torch.float32
CALLS = [
    (lambda m: m(torch.zeros(4, 12)), ValueError, r"y0 has 12 channels, the machine has 10: sizes=\(2, 4, 3, 1\)"),
    (lambda m: m(torch.zeros(4, 2, dtype=torch.int64)), TypeError, r"y0 is torch.int64, the machine is torch.float32"),
    (lambda m: m(torch.zeros(4, 2).double()), TypeError, r"y0 is torch.float64, the machine is torch.float32"),
    (lambda m: m(torch.zeros(4, 2, dtype=torch.complex64)), TypeError, r"y0 is torch.complex64"),
    (lambda m: m(torch.zeros(4, 2, device="meta")), ValueError, r"y0 is on meta, the machine is on cpu"),
    (lambda m: m([1.0, 2.0]), TypeError, r"y0 must be a tensor, got list"),
    (lambda m: m(torch.tensor(1.0)), ValueError, r"y0 has shape \(\), the machine needs \(\.\.\., channels\)"),
    (
        lambda m: m.solve(torch.zeros(4, 2), torch.zeros(3, 2)),
        ValueError,
        r"y0 and z0 must agree in all but their channels, zero-extended they are \(4, 10\) and \(3, 10\)",
    ),
    (lambda m: m.solve(torch.zeros(4, 2), torch.zeros(4, 2).double()), TypeError, r"z0 is torch.float64"),
    (lambda m: m.solve(torch.zeros(4, 2), torch.zeros(4, 11)), ValueError, r"z0 has 11 channels"),
    (lambda m: m.dual(torch.zeros(4, 12)), ValueError, r"y has 12 channels"),
    (lambda m: m.dual(torch.zeros(4, 10)).solve(), ValueError, r"one of u0, v0 must be given"),
    (lambda m: m.tangent(torch.zeros(4, 10)).solve(), ValueError, r"one of dy0, dz0 must be given"),
    (lambda m: m.dual(torch.zeros(4, 10)).solve(torch.zeros(3, 10)), ValueError, r"u0 and y must agree"),
    (lambda m: m.tangent(torch.zeros(4, 10)).solve(None, torch.zeros(4, 11)), ValueError, r"dz0 has 11 channels"),
    (lambda m: m.weight_cotangent(torch.zeros(4, 10), torch.zeros(3, 10)), ValueError, r"v and z must agree"),
    (lambda m: m.split(torch.zeros(4, 9)), ValueError, r"z has 9 channels, split needs all 10: sizes=\(2, 4, 3, 1\)"),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_calls(call, error, message):
    machine = rv.DenseMachine((2, 4, 3, 1))
    before = {name: p.clone() for name, p in machine.state_dict().items()}
    with pytest.raises(error, match=message):
        call(machine)
    assert all(torch.equal(p, before[name]) for name, p in machine.state_dict().items())
