"""Recurrent machines: as networks nobody here wrote, continued, streamed, and on sequences of different lengths."""

import pickle
from copy import deepcopy
from typing import Any

import pytest
import torch
from cases import Case, cases, randomize
from hypothesis import given
from hypothesis import strategies as st
from tolerance import assert_equal
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.testing import assert_close

import resolvent as rv

f64 = torch.float64
recurrent_cases = cases(kinds=("recurrent",))


@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_sequential_connections_at_lag_one_are_a_stacked_rnn(nonlinearity):
    inputs, hidden, layers = 3, 4, 3
    rnn = nn.RNN(inputs, hidden, layers, nonlinearity=nonlinearity, batch_first=True, dtype=f64)
    machine = rv.RecurrentMachine(
        (inputs, *[hidden] * layers), ["identity"] + [nonlinearity] * layers, connections="sequential", dtype=f64
    )
    blocks = machine.partition.blocks
    assert machine.bias is not None
    with torch.no_grad():
        machine.weight[1, blocks[0], blocks[0]] = 0  # an RNN's input does not remember
        for k in range(layers):
            to, source = blocks[k + 1], blocks[k]
            machine.weight[0, to, source] = getattr(rnn, f"weight_ih_l{k}")
            machine.weight[1, to, to] = getattr(rnn, f"weight_hh_l{k}")
            machine.bias[to] = getattr(rnn, f"bias_ih_l{k}") + getattr(rnn, f"bias_hh_l{k}")

    x = torch.randn(5, 7, inputs, dtype=f64, requires_grad=True)
    expected = rnn(x)[0]
    actual = machine.split(machine(x))[-1]
    assert_equal(actual, expected)

    seed = torch.randn_like(expected)
    names, parameters = zip(*rnn.named_parameters(), strict=True)
    expected_dx, *gradients = torch.autograd.grad(expected, [x, *parameters], seed)
    theirs = dict(zip(names, gradients, strict=True))
    dx, dW, db = torch.autograd.grad(actual, [x, machine.weight, machine.bias], seed)
    assert_equal(dx, expected_dx)
    for k in range(layers):
        to, source = blocks[k + 1], blocks[k]
        ours = [dW[0, to, source], dW[1, to, to], db[to], db[to]]
        assert_equal(ours, [theirs[f"{name}_l{k}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")])


@given(st.integers(0, 5), st.integers(1, 7), st.integers(0, 3))
def test_a_time_block_as_long_as_the_sequence_is_a_causal_convolution(lags, time_steps, more):
    """One operator with two partitions gives both networks."""
    sizes = (2, 1, 3)
    recurrent = rv.RecurrentMachine(sizes, lags=lags, time_block=max(lags + 1, time_steps + more), dtype=f64)
    conv = rv.ConvMachine(sizes, kernel_size=lags + 1, padding="causal", dtype=f64)
    randomize(recurrent)
    conv.load_state_dict({"weight": recurrent.weight.flip(0).permute(1, 2, 0), "bias": recurrent.bias})
    y0, z0 = Case(recurrent, (time_steps,)).points(2)
    assert_equal(recurrent.solve(y0, z0), [x.mT for x in conv.solve(y0.mT, z0.mT)])


@given(recurrent_cases, st.data())
def test_a_sequence_may_be_continued_from_its_history(case, data):
    machine, (time_steps,) = case.machine, case.extent
    y0, z0 = case.points(2)
    cut = data.draw(st.integers(0, time_steps))
    y, z = machine.solve(y0, z0)
    first = machine.solve(y0[..., :cut, :], z0[..., :cut, :])
    second = machine.solve(y0[..., cut:, :], z0[..., cut:, :], history=first[1])
    assert_equal(tuple(torch.cat(pair, -2) for pair in zip(first, second, strict=True)), (y, z))


@given(recurrent_cases, st.data())
def test_the_history_carries_the_cotangent(case, data):
    machine, (time_steps,) = case.machine, case.extent
    cut = data.draw(st.integers(0, time_steps))
    y0, v0, u0 = case.points(3)
    inputs = [y0.requires_grad_(), *machine.parameters()]
    expected = torch.autograd.grad(machine.solve(y0), inputs, (v0, u0), materialize_grads=True)
    first = machine.solve(y0[..., :cut, :])
    second = machine.solve(y0[..., cut:, :], history=first[1])
    outputs = [torch.cat(pair, -2) for pair in zip(first, second, strict=True)]
    assert_equal(torch.autograd.grad(outputs, inputs, (v0, u0), materialize_grads=True), expected)


def test_derivatives_by_the_history_are_exact_to_second_order():
    machine = randomize(rv.RecurrentMachine((1, 2), lags=2, dtype=f64))
    y0, history = (
        torch.randn(2, 3, 3, dtype=f64, requires_grad=True),
        torch.randn(2, 2, 3, dtype=f64, requires_grad=True),
    )
    weight = machine.weight.detach().clone().requires_grad_()

    class Continue(nn.Module):
        def __init__(self):
            super().__init__()
            self.machine = machine

        def forward(self, y0, history):
            return self.machine.solve(y0, history=history)

    def function(y0, history, weight):
        return functional_call(Continue(), {"machine.weight": weight}, (y0, history))

    assert torch.autograd.gradcheck(function, (y0, history, weight), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, (y0, history, weight), check_fwd_over_rev=True)


def test_detaching_the_history_truncates_backpropagation():
    machine = randomize(rv.RecurrentMachine((1, 2), dtype=f64))
    x = torch.randn(2, 6, 1, dtype=f64, requires_grad=True)
    _, past = machine.solve(x[:, :3])
    _, z = machine.solve(x[:, 3:], history=past.detach())
    (gradient,) = torch.autograd.grad(z.sum(), x)
    assert gradient[:, :3].count_nonzero() == 0
    assert gradient[:, 3:].count_nonzero() > 0


@given(recurrent_cases)
def test_streaming_gives_the_numbers_of_the_whole_sequence(case):
    machine, (time_steps,) = case.machine, case.extent
    (x,) = case.points(1)
    z = machine(x)
    state = machine.initial_state(*case.batch)
    for t in range(time_steps):
        z_t, state = machine.step(x[..., t, :], state)
        assert_equal(z_t, z[..., t, :])
        assert state.shape == (*case.batch, machine.operator.lags, machine.partition.total)


@given(recurrent_cases.filter(lambda case: case.batch == (3,)), st.data())
def test_past_its_length_a_sequence_is_zero_and_has_no_influence(case, data):
    machine, (time_steps,) = case.machine, case.extent
    lengths = data.draw(st.lists(st.integers(0, time_steps), min_size=3, max_size=3))
    y0, z0, v0, u0 = case.points(4)
    for sequence, length in enumerate(lengths):
        y0[sequence, length:] = float("nan")  # not even NaN gets out
    inputs = [machine.weight, y0.requires_grad_(), z0.requires_grad_()]
    outputs = machine.solve(y0, z0, lengths=lengths)
    cotangents = torch.autograd.grad(outputs, inputs, (v0, u0))
    total = torch.zeros_like(machine.weight)
    for i, length in enumerate(lengths):
        alone = [x[i, :length].detach().requires_grad_() for x in (y0, z0)]
        expected = machine.solve(*alone)
        dW, *others = torch.autograd.grad(
            expected, [machine.weight, *alone], (v0[i, :length], u0[i, :length]), materialize_grads=True
        )
        total += dW
        for actual, e in zip((*outputs, *cotangents[1:]), (*expected, *others), strict=True):
            assert_equal(actual[i, :length], e)
            assert actual[i, length:].count_nonzero() == 0
    assert_equal(cotangents[0], total)
    assert_equal(machine.solve(y0, lengths=torch.tensor(lengths))[1], machine(y0, lengths=lengths))


def test_per_sample_gradients_with_lengths():
    machine = randomize(rv.RecurrentMachine((1, 2), lags=2, dtype=f64))
    parameters = {name: p.detach() for name, p in machine.named_parameters()}
    x, lengths = torch.randn(3, 5, 1, dtype=f64), torch.tensor([5, 2, 0])

    def loss(parameters, x, lengths):
        return functional_call(machine, parameters, (x,), {"lengths": lengths}).square().sum()

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, lengths)
    whole = grad(loss)(parameters, x, lengths)
    assert_equal([g.sum(0) for g in per_sample.values()], list(whole.values()))


def test_lags_as_long_as_the_sequence():
    time_steps = 1024
    machine = rv.RecurrentMachine((1, 2), lags=time_steps - 1, dtype=f64)
    x = torch.randn(2, time_steps, 3, dtype=f64)
    y, z = machine.solve(x)
    W, n = machine.weight * machine.operator.mask(machine.connections.expand(machine.partition)), 1024
    spectrum = torch.einsum("bti,toi->bto", torch.fft.rfft(z, 2 * n, 1), torch.fft.rfft(W, 2 * n, 0))
    assert_equal(y, torch.fft.irfft(spectrum, 2 * n, 1)[:, :n] + x)
    z.sum().backward()
    with torch.no_grad():
        _, v = machine.dual(y).solve(torch.ones_like(z))
        Q = torch.fft.irfft(
            torch.einsum("bto,bti->toi", torch.fft.rfft(v, 2 * n, 1), torch.fft.rfft(z, 2 * n, 1).conj()), 2 * n, 0
        )
    mask = machine.operator.mask(machine.connections.expand(machine.partition))
    assert machine.weight.grad is not None
    assert_close(machine.weight.grad, Q[:n] * mask, rtol=1e-9, atol=1e-9)  # the transform sums 2,048 terms


def test_an_unstable_machine_does_not_leak_past_the_lengths():
    machine = rv.RecurrentMachine((1, 1), "relu", bias=True)
    assert machine.bias is not None
    with torch.no_grad():
        machine.weight.fill_(1)
        machine.bias.fill_(1)
    x = torch.zeros(1, 300, 1)
    z = machine(x, lengths=[3])
    z.sum().backward()
    (short,) = torch.autograd.grad(machine(x[:, :3]).sum(), machine.weight)
    assert_close(machine.weight.grad, short)


def test_what_is_read_at_each_lag():
    """At lags below the time block only later blocks read earlier ones, from there on all read all."""
    lower, every = [[False, False], [True, False]], [[True, True], [True, True]]
    previous, itself = lower, [[True, False], [False, True]]
    expected: dict[Any, list] = {"all": [lower, lower, every], "sequential": [previous, previous, itself]}
    for connections, matrices in expected.items():
        machine = rv.RecurrentMachine((1, 1), lags=2, time_block=2, connections=connections)
        assert machine.connections.expand(machine.partition).tolist() == matrices
        assert (machine.weight != 0).tolist() == matrices
    one = rv.RecurrentMachine((1, 1), lags=2, time_block=2, connections=every)
    assert one.connections.expand(one.partition).tolist() == [lower, lower, every]
    tensors: Any = [torch.tensor(matrix) for matrix in (lower, lower, itself)]
    each = rv.RecurrentMachine((1, 1), lags=2, time_block=2, connections=tensors)
    assert each.connections.expand(each.partition).tolist() == [lower, lower, itself]


@pytest.mark.unchecked
def test_streaming_and_lengths_compile():
    machine = randomize(rv.RecurrentMachine((1, 2), lags=2, dtype=f64))
    x = torch.randn(3, 4, 1, dtype=f64)
    torch._dynamo.reset()
    step = torch.compile(machine.step, fullgraph=True, dynamic=True, backend="aot_eager")
    state, z = machine.initial_state(3), machine(x).detach()
    with torch.no_grad():
        for t in range(4):
            z_t, state = step(x[:, t], state)
            assert_equal(z_t, z[:, t])
    go_on = torch.compile(machine.solve, fullgraph=True, dynamic=True, backend="aot_eager")
    for steps in (1, 3, 4):
        past = z[:, :steps]
        assert_equal(go_on(x, history=past), machine.solve(x, history=past))
    lengths = torch.tensor([4, 1, 0])
    compiled = torch.compile(machine, fullgraph=True, backend="aot_eager")
    assert_equal(compiled(x, lengths=lengths), machine(x, lengths=lengths))


def test_a_sequence_of_no_steps_is_empty():
    machine = rv.RecurrentMachine((1, 2), lags=2)
    assert machine(torch.zeros(4, 0, 1)).shape == (4, 0, 3)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_hundred_steps_neither_die_nor_explode(activation):
    machine = rv.RecurrentMachine((32, 64, 64), ["identity", activation, activation], lags=3)
    y, _ = machine.solve(torch.randn(64, 100, 32))
    scales = torch.stack([block.square().mean().sqrt() for block in machine.split(y)])
    assert scales.min() > 0.5
    assert scales.max() < 2


def test_depth_grows_with_time():
    machine = rv.RecurrentMachine((1, 1, 1), lags=3, time_block=2)
    assert [machine.depth_at(torch.zeros(2, t, 3)) for t in (0, 1, 2, 3, 5)] == [0, 5, 5, 11, 17]


def test_the_repr_says_the_architecture():
    assert repr(rv.RecurrentMachine((2, 4), lags=3, time_block=2)) == (
        "RecurrentMachine(sizes=(2, 4), activation=tanh, lags=3, time_block=2, connections=all, bias=True, "
        "reads 88 of 144 weights)"
    )


def test_equal_systems_are_one():
    first, second = (rv.RecurrentMachine((1, 2), lags=1) for _ in range(2))
    assert first.system is second.system is deepcopy(first).system is pickle.loads(pickle.dumps(first)).system
    assert first.system.dual.dual is first.system
    assert rv.RecurrentMachine((1, 2), lags=2).system is not first.system
