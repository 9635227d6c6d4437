"""Bad input gets an error that names the argument, what came and what was needed, and changes nothing."""

import pytest
import torch
from torch import nn

import resolvent as rv

pytestmark = pytest.mark.unchecked


def writes(y):
    return y.mul_(2)


CONSTRUCTION = [
    (dict(sizes=()), ValueError, r"sizes is empty: at least one integer is needed"),
    (dict(sizes=(2, 0)), ValueError, r"each of sizes must be at least 1, got 0"),
    (dict(sizes=(2, -1)), ValueError, r"each of sizes must be at least 1, got -1"),
    (dict(sizes=(2, 1.5)), TypeError, r"each of sizes must be an integer, got 1.5"),
    (dict(sizes=(2, True)), TypeError, r"each of sizes must be an integer, got True"),
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
    (dict(activation=lambda y: y.cummax(-1).values), ValueError, r"must act pointwise: an entry"),
    (dict(activation=lambda y: y.sort(0).values), ValueError, r"must act pointwise: an entry"),
    (dict(dtype=torch.complex64), TypeError, r"dtype must be of floating point, got torch.complex64"),
    (dict(dtype=torch.int64), TypeError, r"dtype must be of floating point, got torch.int64"),
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


CONV = [
    (dict(kernel_size=0), ValueError, r"each of kernel_size must be at least 1, got 0"),
    (dict(kernel_size=2.5), TypeError, r"kernel_size must be a sequence of integers, got 2.5"),
    (dict(kernel_size=()), ValueError, r"kernel_size is empty"),
    (dict(kernel_size=(1, 1, 1, 1)), ValueError, r"kernel_size has 4 axes, at most 3 are possible"),
    (
        dict(padding="valid"),
        ValueError,
        r"padding='valid' is unknown: use 'same', 'causal' or one \(before, after\) pair",
    ),
    (dict(padding="causal", kernel_size=(3, 3)), ValueError, r"padding='causal' is for one axis, .* has 2"),
    (dict(padding=(0, 0)), ValueError, r"padding \(0, 0\) with a kernel of 3 would change the shape: .* must be 2"),
    (
        dict(padding=[(1, 1)], kernel_size=(3, 3)),
        ValueError,
        r"padding=\[\(1, 1\)\] must be one \(before, after\) pair for",
    ),
    (dict(padding=(3, -1)), ValueError, r"padding must be at least 0, got -1"),
    (dict(padding=(True, True)), TypeError, r"padding must be an integer, got True"),
    (dict(padding=1), TypeError, r"padding must be 'same', 'causal' or one \(before, after\) pair per axis, got 1"),
]
RECURRENT = [
    (dict(lags=-1), ValueError, r"lags must be at least 0, got -1"),
    (dict(lags=1.0), TypeError, r"lags must be an integer, got 1.0"),
    (dict(time_block=0), ValueError, r"time_block must be at least 1, got 0"),
    (dict(connections=torch.ones(3, 3) > 0, lags=0), ValueError, r"connections\[0, 0\] feeds block 0 into block 0"),
    (
        dict(connections=torch.ones(2, 3, 3) > 0),
        ValueError,
        r"connections\[0, 0, 0\] feeds block 0 into block 0: .* at lags below time_block=1",
    ),
    (
        dict(connections=torch.ones(5, 3, 3) > 0),
        ValueError,
        r"connections has shape \(5, 3, 3\), 3 blocks need \(3, 3\) or, with lags=1, \(2, 3, 3\)",
    ),
]


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "message"),
    [(rv.DenseMachine, *row) for row in CONSTRUCTION]
    + [(rv.ConvMachine, *row) for row in CONV]
    + [(rv.RecurrentMachine, *row) for row in RECURRENT],
)
def test_construction(kind, arguments, error, message):
    with pytest.raises(error, match=message):
        kind(**{"sizes": (2, 3, 1), **arguments})


DENSE_CALLS = [
    (
        lambda m: m(torch.zeros(4, 12)),
        ValueError,
        r"x has shape \(4, 12\), the machine takes 2 channels, its first block, or all 10, in the layout \(\.\.\., channels\)",
    ),
    (lambda m: m(torch.zeros(4, 2, dtype=torch.int64)), TypeError, r"y0 is torch.int64, the machine is torch.float32"),
    (lambda m: m(torch.zeros(4, 2).double()), TypeError, r"y0 is torch.float64, the machine is torch.float32"),
    (lambda m: m(torch.zeros(4, 2, dtype=torch.complex64)), TypeError, r"y0 is torch.complex64"),
    (lambda m: m(torch.zeros(4, 2, device="meta")), ValueError, r"y0 is on meta, the machine is on cpu"),
    (lambda m: m([1.0, 2.0]), TypeError, r"x must be a tensor, got list"),
    (lambda m: m.solve([1.0, 2.0]), TypeError, r"y0 must be a tensor, got list"),
    (lambda m: m(None), TypeError, r"x must be a tensor, got NoneType"),
    (lambda m: m.solve(None), ValueError, r"one of y0, z0 must be given"),
    (lambda m: m.endofunction((None, None)), ValueError, r"one of y, z must be given"),
    (lambda m: m.dual(torch.zeros(4, 10)).endofunction((torch.zeros(4, 2), None)), ValueError, r"u of shape \(4, 2\)"),
    (lambda m: m.tangent((None, None)).solve(torch.zeros(4, 2)), ValueError, r"the point y must be given"),
    (lambda m: m.tangent(3).solve(torch.zeros(4, 2)), TypeError, r"y must be a tensor, got int"),
    (
        lambda m: m.dual(torch.zeros(4, 2)).solve(torch.zeros(4, 10)),
        ValueError,
        r"y of shape \(4, 2\) has 2 channels, the machine takes all 10",
    ),
    (lambda m: m.split(torch.tensor(1.0)), ValueError, r"z has shape \(\), split needs"),
    (lambda m: m.split(None), TypeError, r"z must be a tensor, got NoneType"),
    (lambda m: m.placed("a"), TypeError, r"t must be a tensor, got str"),
    (lambda m: m.placed(None), TypeError, r"t must be a tensor, got NoneType"),
    (
        lambda m: m + rv.Network.dense(2, (3,), 1),
        TypeError,
        r"DenseMachine and Network do not add: .* as Layer\(machine,",
    ),
    (lambda m: nn.Linear(2, 3) + m, TypeError, r"Linear and DenseMachine do not add"),
    (lambda m: m + 1, TypeError, r"unsupported operand type\(s\) for \+: 'DenseMachine' and 'int'"),
    (lambda m: m(torch.tensor(1.0)), ValueError, r"x has shape \(\), the machine takes 2 channels"),
    (lambda m: m.solve(torch.tensor(1.0)), ValueError, r"y0 has shape \(\), the machine needs \(\.\.\., channels\)"),
    (
        lambda m: m.solve(torch.zeros(4, 2), torch.zeros(3, 2)),
        ValueError,
        r"y0 and z0 must agree in all but their channels, zero-extended they are \(4, 10\) and \(3, 10\)",
    ),
    (lambda m: m.solve(torch.zeros(4, 2), torch.zeros(4, 2).double()), TypeError, r"z0 is torch.float64"),
    (lambda m: m.solve(torch.zeros(4, 2), torch.zeros(4, 11)), ValueError, r"z0 of shape \(4, 11\) has 11 channels"),
    (
        lambda m: m.dual(torch.zeros(4, 12)).solve(torch.zeros(4, 10)),
        ValueError,
        r"y of shape \(4, 12\) has 12 channels",
    ),
    (lambda m: m.dual(torch.zeros(4, 10)).solve(), ValueError, r"one of u0, v0 must be given"),
    (lambda m: m.tangent(torch.zeros(4, 10)).solve(), ValueError, r"one of dy0, dz0 must be given"),
    (lambda m: m.dual(torch.zeros(4, 10)).solve(torch.zeros(3, 10)), ValueError, r"u0 and y must agree"),
    (
        lambda m: m.tangent(torch.zeros(4, 10)).solve(None, torch.zeros(4, 11)),
        ValueError,
        r"dz0 of shape \(4, 11\) has 11 channels",
    ),
    (lambda m: m.weight_cotangent(torch.zeros(4, 10), torch.zeros(3, 10)), ValueError, r"v and z must agree"),
    (
        lambda m: m.solve(torch.zeros(4, 3)),
        ValueError,
        r"y0 of shape \(4, 3\) has 3 channels, the machine takes 2, 6, 9 or 10",
    ),
    (
        lambda m: m(torch.zeros(4, 6)),
        ValueError,
        r"x has shape \(4, 6\), the machine takes 2 channels, its first block, or all 10",
    ),
    (lambda m: m.solve(torch.zeros(4, 5)), ValueError, r"y0 of shape \(4, 5\) has 5 channels"),
    (lambda m: m.solve(None, torch.zeros(4, 5)), ValueError, r"z0 of shape \(4, 5\) has 5 channels"),
    (
        lambda m: m.dual(torch.zeros(4, 10)).solve(torch.zeros(4, 1)),
        ValueError,
        r"u0 of shape \(4, 1\) .* takes all 10",
    ),
    (lambda m: m.dual((torch.zeros(4, 10),) * 3), ValueError, r"a pair \(y, z\), got 3 entries"),
    (
        lambda m: (
            m.requires_grad_(False).tangent(torch.zeros(4, 10), value=torch.zeros(3, 10)).solve(torch.zeros(4, 2))
        ),
        ValueError,
        r"dy0 and value must agree in all but their channels, zero-extended they are \(4, 10\) and \(3, 10\)",
    ),
    (
        lambda m: m.placed(torch.zeros(4, 2)),
        ValueError,
        r"t has shape \(4, 2\), block -1 has 1 channels in \(\.\.\., chan",
    ),
    (lambda m: m.placed(torch.zeros(4, 2), 4), ValueError, r"block=4 is none of the 4 blocks: sizes=\(2, 4, 3, 1\)"),
    (
        lambda m: m + rv.Layer(torch.sin, reads="a", writes="b"),
        TypeError,
        r"DenseMachine and Layer do not add: sums are of layers between named parts",
    ),
    (
        lambda m: rv.Layer(torch.sin, reads="a", writes="b") + m,
        TypeError,
        r"put in one as Layer\(machine, reads=…, writes=…\)",
    ),
    (lambda m: m + m, TypeError, r"or, if it is structured, as machine.as_sum\(\)"),
    (
        lambda m: m.split(torch.zeros(4, 9)),
        ValueError,
        r"z has shape \(4, 9\), split needs \(\.\.\., channels\) with all 10 channels",
    ),
]


CONV_CALLS = [
    (
        lambda m: m.solve(torch.zeros(4)),
        ValueError,
        r"y0 has shape \(4,\), the machine needs \(batch, channels, space\) or",
    ),
    (
        lambda m: m.solve(torch.zeros(1, 4, 2, 5)),
        ValueError,
        r"y0 has shape \(1, 4, 2, 5\), the machine needs \(batch, channels",
    ),
    (
        lambda m: m(torch.zeros(4, 12, 5)),
        ValueError,
        r"x has shape \(4, 12, 5\), the machine takes 2 channels",
    ),
    (
        lambda m: m(torch.zeros(4, 5, 2)),
        ValueError,
        r"x has shape \(4, 5, 2\), .* in the layout \(batch, channels, space\)",
    ),  # channels last
    (
        lambda m: m.solve(torch.zeros(4, 2, 5), torch.zeros(4, 2, 6)),
        ValueError,
        r"y0 and z0 must agree in all but their channels, zero-extended they are \(4, 10, 5\) and \(4, 10, 6\)",
    ),
]
RECURRENT_CALLS = [
    (
        lambda m: m.solve(torch.zeros(4)),
        ValueError,
        r"y0 has shape \(4,\), the machine needs \(batch, time, channels\) or",
    ),
    (
        lambda m: m.solve(torch.zeros(1, 4, 2, 5)),
        ValueError,
        r"y0 has shape \(1, 4, 2, 5\), the machine needs \(batch, time",
    ),
    (
        lambda m: m.solve(torch.zeros(4, 5, 2), history=torch.zeros(4, 1, 2)),
        ValueError,
        r"history of shape \(4, 1, 2\) has 2 channels, the machine takes all 10, in the layout",
    ),
    (
        lambda m: m.solve(torch.zeros(4, 5, 2), history=torch.zeros(3, 1, 10)),
        ValueError,
        r"history has shape \(3, 1, 10\), y0 has the batch \(4,\)",
    ),
    (
        lambda m: m.solve(torch.zeros(4, 5, 2), history=torch.zeros(10)),
        ValueError,
        r"history has shape \(10,\), the machine",
    ),
    (
        lambda m: m.solve(torch.zeros(4, 5, 2), history=torch.zeros(4, 1, 10).double()),
        TypeError,
        r"history is torch.float64",
    ),
    (
        lambda m: m.step(torch.zeros(4, 1, 2), m.initial_state(4)),
        ValueError,
        r"x has shape \(4, 1, 2\) and state \(4, 1, 10\): a step needs \(batch, 2\) and \(batch, 1, 10\)",
    ),
    (lambda m: m.step(torch.zeros(4, 2), torch.zeros(4, 2, 10)), ValueError, r"state \(4, 2, 10\): a step needs"),
    (
        lambda m: m.step(torch.zeros(4, 3), m.initial_state(4)),
        ValueError,
        r"x has shape \(4, 3\) and state .* \(batch, 2\)",
    ),
    (lambda m: m.step(torch.zeros(4, 2), None), ValueError, r"x has shape \(4, 2\) and state NoneType: a step needs"),
    (lambda m: m(torch.zeros(4, 5, 2), lengths=[1, 2, 6, 0]), ValueError, r"lengths must be from 0 to 5, got 6"),
    (lambda m: m(torch.zeros(4, 5, 2), lengths=[1, 2, -1, 0]), ValueError, r"lengths must be from 0 to 5, got -1"),
    (
        lambda m: m(torch.zeros(4, 5, 2), lengths=[1, 2]),
        ValueError,
        r"lengths must be integers of shape \(4,\), one for each sequence, got torch.int64 of shape \(2,\)",
    ),
    (
        lambda m: m(torch.zeros(4, 5, 2), lengths=[1.0] * 4),
        ValueError,
        r"lengths must be integers .* got torch.float32",
    ),
    (lambda m: m.depth, ValueError, r"a RecurrentMachine has no depth of its own, it grows with time: depth_at\(x\)"),
    (lambda m: m.cofiltration(), ValueError, r"a RecurrentMachine has no depth of its own"),
    (lambda m: m.as_sum(0), ValueError, r"time_steps must be at least 1, got 0"),
]


@pytest.mark.parametrize(
    ("kind", "call", "error", "message"),
    [(rv.DenseMachine, *row) for row in DENSE_CALLS]
    + [(rv.ConvMachine, *row) for row in CONV_CALLS]
    + [(rv.RecurrentMachine, *row) for row in RECURRENT_CALLS],
)
def test_calls(kind, call, error, message):
    machine = kind((2, 4, 3, 1))
    before = {name: p.clone() for name, p in machine.state_dict().items()}
    with pytest.raises(error, match=message):
        call(machine)
    assert all(torch.equal(p, before[name]) for name, p in machine.state_dict().items())


def test_a_network_names_its_own_input():
    with pytest.raises(
        ValueError, match=r"x has shape \(4, 6\), the network takes 2 channels in the layout \(\.\.\., chan"
    ):
        rv.Network.dense(2, (3,), 1)(torch.zeros(4, 6))
    with pytest.raises(ValueError, match="x is a list, the network takes 2 channels"):
        rv.Network.dense(2, (3,), 1)([1.0, 2.0])
    with pytest.raises(ValueError, match="activation lists 1 activations, 2 hidden blocks need one each"):
        rv.Network.dense(2, (3, 4), 1, ["tanh"])
    for none in ((), []):
        assert rv.Network.dense(2, none, 1).machine.partition.sizes == (2, 1)
    with pytest.raises(TypeError, match="hidden must be a sequence of integers, got 3"):
        rv.Network.dense(2, 3, 1)  # pyright: ignore  # that is the mistake
    with pytest.raises(
        ValueError, match=r"x has shape \(8, 3, 9, 9\), the network takes 3 channels in the layout \(batch, ch"
    ):
        rv.Network.conv(3, (4,), 1)(torch.zeros(8, 3, 9, 9))
    assert [a.name for a in rv.Network.dense(2, (3, 4), 1, ["tanh", "relu"]).machine.activation.blocks][1:3] == [
        "tanh",
        "relu",
    ]
    assert rv.Network.recurrent(2, (3,), 1, lags=0)(torch.zeros(4, 5, 2)).shape == (4, 5, 1)


def test_a_machine_of_ones_own_is_not_saved(tmp_path):
    machine = rv.StructuredMachine(rv.DenseMachine((1, 2)).operator, (1, 2))
    with pytest.raises(
        ValueError, match="a StructuredMachine is none of the library's kinds: only those can be shared"
    ):
        machine.save(tmp_path / "machine")
