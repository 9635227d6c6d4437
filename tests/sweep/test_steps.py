"""A toy of each thing that a sweep runs on: other numbers, packed weights, loops over time; and what must agree."""

import gc
import pickle
import re
import weakref
from copy import deepcopy
from typing import Any

import pytest
import torch
from cases import SERVED, Case, cases, randomize, read_part
from hypothesis import given
from tolerance import assert_equal
from torch import Tensor

import resolvent as rv
from resolvent.structure.connections import Connections
from resolvent.structure.convolution import Convolution
from resolvent.structure.dense import Dense
from resolvent.structure.lagged import Lagged
from resolvent.structure.numbers import REALS, Numbers
from resolvent.structure.operator import Product, Rectangle, Region
from resolvent.structure.sigma import FUNCTION, SLOPE_AT, Sigma
from resolvent.sweep.plan import EVERY, Activate, Loop, Multiply, backwards
from resolvent.sweep.solve import solve
from resolvent.sweep.steps import accumulate, flat, steps
from resolvent.sweep.system import from_integers, system

EPSILON = Numbers(2)
"""a + b ε with ε² = 0: the derivative in one direction."""
smooth = cases(activations=("tanh", "sin", "sigmoid"))


def over(numbers: Numbers, case: Case, y0: Tensor, z0: Tensor | None) -> tuple[Tensor, Tensor]:
    """The machine's solve over numbers, of points with an axis for them before the event."""
    machine = case.machine
    return solve(machine.system, Sigma(FUNCTION, numbers=numbers), machine.weight, machine.bias, y0, z0)


def with_epsilon(case: Case, a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([a, b], -1 - case.machine.operator.event_ndim)


@given(smooth)
def test_the_sweep_over_dual_numbers_is_the_machine_beside_its_derivative(case):
    y0, z0, dy0, dz0 = case.points(4)
    y, z = over(EPSILON, case, with_epsilon(case, y0, dy0), with_epsilon(case, z0, dz0))
    solution = case.machine.solve(y0, z0)
    derivative = case.machine.tangent(solution).solve(dy0, dz0)
    for both, a, b in zip((y, z), solution, derivative, strict=True):
        assert_equal(both, with_epsilon(case, a, b))


@given(smooth)
def test_one_backward_pass_over_dual_numbers_is_a_second_one_over_the_reals(case):
    """The slopes are dual numbers, and the dual machine multiplies by the adjoint of what the tangent machine does."""
    machine, (y0, dy0, seed) = case.machine, case.points(3)
    axis = -1 - machine.operator.event_ndim
    inputs = [y0.requires_grad_(), *machine.parameters()]
    _, z = over(EPSILON, case, with_epsilon(case, y0, dy0), None)
    actual = torch.autograd.grad(z.select(axis, 1), inputs, seed, materialize_grads=True)
    dz = torch.func.jvp(machine, (y0,), (dy0,))[1]
    point = machine.solve(y0)[0]
    expected = torch.autograd.grad(machine.tangent(point).solve(dy0)[1], inputs, seed, materialize_grads=True)
    assert_equal(dz.detach(), z.select(axis, 1).detach())
    assert_equal(actual, expected)


def test_derivatives_over_dual_numbers_are_exact_to_second_order():
    case = Case(randomize(rv.RecurrentMachine((1, 2), "tanh", lags=2, dtype=torch.float64)), (3,), (2,))
    y0, z0, dy0 = (x.requires_grad_() for x in case.points(3))
    machine = case.machine

    def function(y0, z0, dy0, weight, bias):
        points = with_epsilon(case, y0, dy0), with_epsilon(case, z0, y0)
        return solve(machine.system, Sigma(FUNCTION, numbers=EPSILON), weight, bias, *points)

    inputs = (y0, z0, dy0, *machine.parameters())
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs)
    per_sample = torch.func.vmap(lambda y0: function(y0, z0[0], dy0[0], *machine.parameters()))(y0)
    assert_equal(per_sample[1][1], function(y0[1], z0[0], dy0[0], *machine.parameters())[1])


def test_reals_are_numbers_without_an_axis():
    case = Case(randomize(rv.DenseMachine((2, 3), dtype=torch.float64)))
    (y0,) = case.points(1)
    assert_equal(over(REALS, case, y0, None), case.machine.solve(y0))


@given(cases(kinds=SERVED))
def test_a_packed_weight_is_solved_with_as_it_is(case):
    """Step by step, over any numbers of a batch, and its cotangent is as large."""
    machine, (y0, z0, v0, u0) = case.machine, case.points(4)
    whole, packed = machine.system, rv.space.packed(machine).system
    entries = whole.packed_weight(machine.weight.detach())
    assert torch.equal(packed.unpacked(entries), machine.weight.where(read_part(machine), 0))
    assert_equal(
        steps(packed, Sigma(FUNCTION), entries, machine.bias, y0, z0),
        steps(whole, Sigma(FUNCTION), machine.weight, machine.bias, y0, z0),
    )
    v, z = (flat(x, 0, machine.operator.event_ndim) for x in (v0, u0))
    assert_equal(accumulate(packed, v, z, 0), whole.packed_weight(accumulate(whole, v, z, 0)))


class Own(rv.Operator):
    """A dense W, without what makes it fast."""

    event_ndim, ndims, layout = 1, range(1, 100), "(..., channels)"

    def __init__(self, channels: int):
        self.channels, self.weight_shape = channels, (channels, channels)

    def apply(self, W: Tensor, z: Tensor) -> Tensor:
        return z @ W.mT


@given(cases(kinds=("dense",)))
def test_a_packed_weight_of_an_operator_of_ones_own_is_solved_with(case):
    machine, (y0, z0, v0, u0) = case.machine, case.points(4)
    packed = system(machine.connections, Own(machine.partition.total), machine.activation, packed=True)
    assert packed.executor("cpu", torch.float64) == "torch"
    weight = packed.packed_weight(machine.weight.detach()).requires_grad_()
    solution = solve(packed, Sigma(FUNCTION), weight, machine.bias, y0, z0)
    assert_equal(solution, machine.solve(y0, z0))
    actual = torch.autograd.grad(solution, weight, (v0, u0))[0]
    expected = torch.autograd.grad(machine.solve(y0, z0), machine.weight, (v0, u0))[0]
    assert_equal(actual, packed.packed_weight(expected))


def test_a_loop_of_two_steps_is_the_plan_of_any_length_and_its_dual_is_that_backwards():
    machine = rv.RecurrentMachine((1, 1), lags=2, time_block=2)
    recurrence, lower = Rectangle(0, range(2, 3), range(2), range(2)), Rectangle(1, range(2), range(1, 2), range(1))
    body = Multiply(0, EVERY), Activate(0), Multiply(1, EVERY), Activate(1)
    assert machine.system.rectangles == (recurrence, lower)
    assert machine.system.steps == (Loop(2, body),)
    assert machine.system.dual.steps == (Loop(2, body[::-1]),) == backwards(machine.system.steps)
    products = [step for step in machine.system.unrolled(3, 0) if isinstance(step, Product)]
    first, both = Region(range(2), range(1, 2)), Region(range(2), range(1))
    assert products[0] == Product(first, both, range(2), 1)
    last = Region(range(2, 3), range(2)), Region(range(1), range(2))
    assert products[1] == Product(*last, range(2, 3), 0)
    assert Product(last[1], last[0], range(2, 3), 0) in machine.system.dual.unrolled(3, 0)


@given(cases())
def test_every_entry_that_is_read_is_read_once_for_each_time(case):
    machine, (x,) = case.machine, case.points(1)
    steps = machine.operator.time_steps(x)
    read = torch.zeros(len(machine.connections.matrices), steps, *[machine.partition.total] * 2)
    for step in machine.system.unrolled(steps, 0):
        if isinstance(step, Product):
            for lag in step.lags:
                for t in step.to.times:
                    if t - lag in step.source.times:
                        to, source = (slice(part.channels.start, part.channels.stop) for part in (step.to, step.source))
                        read[lag, t, to, source] += 1
    for lag, mask in enumerate(machine.connections.expand(machine.partition)):
        for t in range(steps):
            assert torch.equal(read[lag, t], mask.float() if t >= lag else torch.zeros_like(read[lag, t]))


@given(cases(kinds=SERVED))
def test_a_system_comes_back_from_its_integers_and_from_a_pickle(case):
    whole = case.machine.system
    assert from_integers(whole.integers()) is whole
    assert pickle.loads(pickle.dumps(whole)) is deepcopy(whole) is whole
    assert pickle.loads(pickle.dumps(whole.dual)) is whole.dual


def test_what_does_not_agree_makes_no_system():
    machine: Any = rv.RecurrentMachine((1, 2), lags=1)
    connections, sigma = machine.connections, machine.activation
    for operator, message in (
        (Lagged(4, 1), "the operator has 4 channels"),
        (Lagged(3, 2), "connections are for 2 lags, the operator has 3"),
        (Dense(3), "connections are for 2 lags, the operator has 1"),
    ):
        with pytest.raises(ValueError, match=message):
            system(connections, operator, sigma)
    dense = rv.DenseMachine((1, 2))
    for padding in ((3, -1), (-1, 3), (0, 0)):
        with pytest.raises(ValueError, match=rf"padding {re.escape(str(padding))} does not fit a kernel of 3: "):
            Convolution(3, (3,), (padding,))
    with pytest.raises(ValueError, match=r"\(\(1, 1\),\) must be one pair for each axis of the kernel \(3, 3\)"):
        Convolution(3, (3, 3), ((1, 1),))
    with pytest.raises(ValueError, match=r"connections are not of 2 blocks: sizes=\(1, 2\)"):
        system(Connections((((False,) * 3,) * 3,)), Dense(3), dense.activation)
    with pytest.raises(ValueError, match=r"connections\[0, 1\] feeds block 1 into block 0"):
        Connections((((False, True), (False, False)),))
    full = ((True, True), (True, True))
    with pytest.raises(ValueError, match="time_block must be at least 1, got 0"):
        Connections((full,), time_block=0)


@pytest.mark.parametrize("name", ["system", "partition", "connections", "operator", "activation"])
def test_what_a_machine_is_made_of_cannot_be_replaced(name):
    machine = rv.DenseMachine((1, 2))
    with pytest.raises(AttributeError):
        setattr(machine, name, getattr(rv.DenseMachine((2, 2)), name))


@pytest.mark.parametrize("name", ["activations", "steps", "dual", "form"])
def test_a_system_which_equal_machines_share_cannot_be_changed(name):
    machine, other = (rv.DenseMachine((1, 2)) for _ in range(2))
    for shared in (machine.system, machine.system.dual):
        with pytest.raises(AttributeError, match=f"{name} of a System cannot be replaced: equal machines share it"):
            setattr(shared, name, getattr(rv.DenseMachine((1, 2), "sin").system, name))
    assert machine.system is other.system


def test_an_operator_cannot_be_changed():
    with pytest.raises(AttributeError):
        rv.ConvMachine((1, 2)).operator.padding = ((5, 5),)


@pytest.mark.parametrize("known", [Dense, Lagged, Convolution])
def test_known_operators_are_final(known):
    """Of a subclass, executors would compute what it is not."""
    with pytest.raises(TypeError, match=f"{known.__name__} is final: Mine is to be a subclass of rv.Operator"):
        type("Mine", (known,), {})


@pytest.mark.unchecked
def test_an_activation_like_a_known_one_is_not_computed_as_it():
    tanh, x = rv.DenseMachine((1, 2)).activation.blocks[0], torch.randn(4, 1)
    hooked: Any = torch.nn.Tanh()
    hooked.register_forward_hook(lambda module, inputs, output: 3 * output)
    like: Any = type(tanh)(tanh.name, torch.sin, torch.cos, tanh.series)
    for other, expected in ((like, torch.sin), (hooked, lambda y: 3 * y.tanh())):
        machine = rv.DenseMachine((1, 2), other)
        assert machine.executor == "torch"
        assert_equal(machine(x)[:, :1].detach(), expected(x))


def test_an_operator_that_gives_another_shape_is_refused():
    class Short(Own):
        def apply(self, W: Tensor, z: Tensor) -> Tensor:
            return super().apply(W, z)[..., :1]

    dense = rv.DenseMachine((1, 2))
    short = system(dense.connections, Short(3), dense.activation)
    with pytest.raises(ValueError, match=r"Short gives \(4, 1\) where y has \(4, 2\)"):
        solve(short, Sigma(FUNCTION), torch.ones(3, 3), None, torch.zeros(4, 1), None)


def test_systems_with_parts_of_ones_own_go_with_their_machine():
    dense = rv.DenseMachine((1, 2))
    operator = Own(3)
    seen, made = weakref.ref(operator), system(dense.connections, operator, dense.activation)
    assert made.operator is operator
    del operator, made
    gc.collect()
    assert seen() is None


def test_changed_and_freed_memory_is_refused():
    machine = rv.DenseMachine((2, 3))
    x = torch.randn(4, 2)
    z = machine(x)
    machine.weight.data = torch.zeros(2, 2)
    with pytest.raises(ValueError, match=r"weight has shape \(2, 2\), the machine needs \(5, 5\)"):
        z.sum().backward()
    for dtype in (torch.int64, torch.complex64):
        machine = rv.DenseMachine((2, 3)).requires_grad_(False)
        machine.weight.data = machine.weight.data.to(dtype)
        with pytest.raises(TypeError, match=f"weight is {dtype}, a machine needs floating point"):
            machine(x)
    for name in ("weight", "bias"):
        machine = rv.DenseMachine((2, 3)).requires_grad_(False)
        getattr(machine, name).untyped_storage().resize_(0)
        for device_free in (machine, machine.solve):
            with pytest.raises(ValueError, match=f"{name} has no memory: its storage was freed"):
                device_free(x)
    machine = rv.DenseMachine((2, 3), "gelu")  # whose slope would be taken first
    y = machine.solve(x)[0].detach().clone()
    y.untyped_storage().resize_(0)
    for derivative in (machine.tangent(y), machine.dual(y)):
        with pytest.raises(ValueError, match="y has no memory: its storage was freed"):
            derivative.solve(torch.randn(4, 5))
    view = torch.randn(9, 2)[3:7]
    view.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="y0 has no memory: its storage was freed"):
        rv.DenseMachine((2, 3))(view)


def test_slopes_at_a_point_over_numbers_are_numbers():
    case = Case(randomize(rv.ConvMachine((1, 2), "sin", dtype=torch.float64)), (3,))
    machine = case.machine
    y, dy, y0, dy0, z0 = case.points(5)
    at = Sigma(SLOPE_AT, with_epsilon(case, y, dy), numbers=EPSILON)
    points = with_epsilon(case, y0, dy0), with_epsilon(case, z0, z0)
    u, v = solve(machine.system.dual, at, machine.weight, None, *points)
    slope = at.with_slope(machine.activation).point
    assert slope is not None
    axis = -1 - machine.operator.event_ndim
    assert_equal(slope, with_epsilon(case, y.cos(), -y.sin() * dy))
    assert_equal(v, EPSILON.adjoint(slope, u, axis) + points[1])
