"""The statements of the paper about structured machines, each as its formula, in float64."""

from functools import partial

import pytest
import torch
from cases import (
    ALL_MACHINES,
    Case,
    apply_transpose,
    apply_weight,
    cases,
    functional,
    naive_solve,
    randomize,
    read_part,
)
from hypothesis import example, given
from hypothesis import strategies as st
from tolerance import assert_equal
from torch.testing import assert_close

import resolvent as rv


def randomized(name):
    case = ALL_MACHINES[name]()
    randomize(case.machine)
    return case


def each_case(law):
    """Any machine and, as it is drawn too seldom to be large, that of the graph."""
    return given(cases())(example(randomized("graph"))(law))


def bias_of(machine):
    return 0 if machine.bias is None else machine.bias.reshape(-1, *(1,) * (-1 - machine.operator.channel_axis))


def cotangents_of(outputs, inputs, seeds):
    return torch.autograd.grad(outputs, inputs, seeds, materialize_grads=True)


@each_case
def test_solve_satisfies_the_machine_equation(case):
    machine = case.machine
    y0, z0 = case.points(2)
    y, z = machine.solve(y0, z0)
    assert_equal(y, apply_weight(machine, machine.weight, z) + y0 + bias_of(machine))
    assert_equal(z, machine.activation(y) + z0)


@each_case
def test_the_resolvent_is_a_right_inverse_of_id_minus_f(case):
    machine = case.machine
    y0, z0 = case.points(2)
    y, z = machine.solve(y0, z0)
    fy, fz = machine.endofunction((y, z))
    assert_equal((y - fy, z - fz), (y0 + bias_of(machine), z0))


@each_case
def test_the_resolvent_is_a_left_inverse_of_id_minus_f(case):
    machine = case.machine
    y, z = case.points(2)
    fy, fz = machine.endofunction((y, z))
    assert_equal(machine.solve(y - fy - bias_of(machine), z - fz), (y, z))


@each_case
def test_iterating_depth_times_from_anywhere_gives_the_resolvent(case):
    machine = case.machine
    y0, z0, y, z = case.points(4)
    for _ in range(case.depth + 1):  # h_0 = g + φ with φ in Im f takes one application to reach
        fy, fz = machine.endofunction((y, z))
        y, z = fy + y0 + bias_of(machine), fz + z0
    assert_equal((y, z), machine.solve(y0, z0))


def test_fewer_iterations_than_the_depth_may_not_suffice():
    machine = rv.DenseMachine((1, 1, 1, 1), "identity", connections="sequential", dtype=torch.float64)
    (y0,) = Case(machine).points(1)
    y, z = y0, torch.zeros_like(y0)  # the depth sequence h_0 = g
    for step in range(1, machine.depth + 1):
        fy, fz = machine.endofunction((y, z))
        y, z = fy + y0, fz
        assert torch.allclose(z, machine(y0)) == (step == machine.depth)


@each_case
def test_the_dual_machine_satisfies_its_equation(case):
    machine = case.machine
    y, u0, v0 = case.points(3)
    u, v = machine.dual(y).solve(u0, v0)
    assert_equal(u, apply_transpose(machine, machine.weight, v) + u0)
    assert_equal(v, machine.activation.slope(y) * u + v0)


@each_case
def test_the_derivative_machine_satisfies_its_equation(case):
    machine = case.machine
    y, dy0, dz0 = case.points(3)
    dy, dz = machine.tangent(y).solve(dy0, dz0)
    assert_equal(dy, apply_weight(machine, machine.weight, dz) + dy0)
    assert_equal(dz, machine.activation.slope(y) * dy + dz0)


@each_case
def test_tangent_and_dual_resolvents_are_dual(case):
    machine = case.machine
    y, dy0, dz0, u0, v0 = case.points(5)
    dy, dz = machine.tangent(y).solve(dy0, dz0)
    u, v = machine.dual(y).solve(u0, v0)
    assert_equal((dy * v0).sum() + (dz * u0).sum(), (dy0 * v).sum() + (dz0 * u).sum())


@each_case
def test_backward_is_the_resolvent_of_the_dual(case):
    """Theorem 3: the explicit passes, under no_grad, are what autograd of a naive program returns."""
    machine = case.machine
    y0, z0, v0, u0 = case.points(4)
    with torch.no_grad():
        y, z = machine.solve(y0, z0)
        u, v = machine.dual(y).solve(u0, v0)
        Q = machine.weight_cotangent(v, z)
    inputs = [machine.weight, y0.requires_grad_(), z0.requires_grad_()]
    expected = cotangents_of(naive_solve(machine, machine.weight, machine.bias, y0, z0), inputs, (v0, u0))
    assert_equal((Q, v, u), expected)


@each_case
def test_autograd_through_the_machine_equals_autograd_through_a_naive_program(case):
    machine = case.machine
    y0, z0, v0, u0 = case.points(4)
    inputs = [*machine.parameters(), y0.requires_grad_(), z0.requires_grad_()]
    outputs = machine.solve(y0, z0)
    naive = naive_solve(machine, machine.weight, machine.bias, y0, z0)
    assert_equal(outputs, naive)
    assert_equal(cotangents_of(outputs, inputs, (v0, u0)), cotangents_of(naive, inputs, (v0, u0)))


@example(randomized("graph"))
@given(cases(activations=("tanh", "sigmoid", "gelu", "sin")))
def test_forward_mode_is_the_limit_of_finite_differences(case):
    machine = case.machine
    y0, z0, dy0, dz0 = case.points(4)
    function, parameters = functional(machine)
    at = (y0, z0, *parameters)
    direction = (dy0, dz0, *map(torch.randn_like, parameters))
    tangents = torch.func.jvp(function, at, direction)[1]
    epsilon = 1e-5
    plus, minus = (function(*(x + s * dx for x, dx in zip(at, direction, strict=True))) for s in (epsilon, -epsilon))
    for tangent, right, left in zip(tangents, plus, minus, strict=True):
        assert_close(tangent, (right - left) / (2 * epsilon), atol=1e-6, rtol=1e-6)


@example(randomized("graph"), float("nan"))
@given(cases(), st.floats(allow_nan=True))
def test_entries_outside_the_read_part_never_matter(case, junk):
    machine = case.machine
    y0, z0, v0, u0 = case.points(4)
    inputs = (machine.weight, y0.requires_grad_(), z0.requires_grad_())
    outputs = machine.solve(y0, z0)
    cotangents = cotangents_of(outputs, inputs, (v0, u0))
    assert (cotangents[0][~read_part(machine)] == 0).all()
    with torch.no_grad():
        machine.weight[~read_part(machine)] = junk
    spoiled = machine.solve(y0, z0)
    assert_close(spoiled, outputs, rtol=0, atol=0)
    assert_close(cotangents_of(spoiled, inputs, (v0, u0)), cotangents, rtol=0, atol=0)


@each_case
def test_zero_weight_gives_the_pointwise_map(case):
    machine = case.machine
    y0, z0 = case.points(2)
    with torch.no_grad():
        machine.weight.zero_()
    y, z = machine.solve(y0, z0)
    assert_equal(y, y0 + bias_of(machine))
    assert_equal(z, machine.activation(y) + z0)


@each_case
def test_short_input_is_zero_extended(case):
    machine = case.machine
    (y0,) = case.points(1)
    channels = machine.partition.sizes[0]
    short, rest = y0.split([channels, machine.partition.total - channels], case.channel_axis)
    rest.zero_()
    assert_equal(machine(short), machine.solve(y0)[1])
    assert_equal(machine.solve(y0, short), machine.solve(y0, y0))


@each_case
def test_split_gives_the_blocks_as_views(case):
    machine = case.machine
    (z,) = case.points(1)
    blocks = machine.split(z)
    assert [block.shape[case.channel_axis] for block in blocks] == list(machine.partition.sizes)
    assert_equal(torch.cat(blocks, case.channel_axis), z)
    assert all(block._base is z for block in blocks)


@each_case
def test_inputs_are_never_written_to(case):
    machine = case.machine
    tensors = case.points(5)
    before = [x.clone() for x in tensors]
    y0, z0, y, u0, v0 = tensors
    machine.solve(y0, z0)
    machine.dual(y).solve(u0, v0)
    machine.weight_cotangent(u0, v0)
    assert_close(tensors, tuple(before), rtol=0, atol=0)


def test_depth_is_twice_the_blocks_minus_one():
    assert rv.DenseMachine((2, 4, 3, 1)).depth == 7


def test_batched_cotangents_of_a_weight_cotangent_lose_no_derivative():
    v, z = (torch.randn(4, 5, requires_grad=True) for _ in range(2))
    Q = rv.DenseMachine((2, 3)).weight_cotangent(v, z)
    with pytest.raises(NotImplementedError, match="would lose derivatives"):
        torch.autograd.grad(Q, (v, z), torch.randn(2, 5, 5), is_grads_batched=True, create_graph=True)


@pytest.mark.unchecked  # type checks would make it five times as slow
@pytest.mark.parametrize("name", ALL_MACHINES)
class TestEveryOrder:
    """The linear solve is closed under differentiation, so every derivative is exact."""

    def arguments(self, name):
        case = ALL_MACHINES[name]()
        case.batch = (2,)
        function, parameters = functional(randomize(case.machine))
        return function, tuple(x.requires_grad_() for x in (*case.points(2), *parameters))

    def test_first_order(self, name):
        assert torch.autograd.gradcheck(
            *self.arguments(name), check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True
        )

    def test_second_order(self, name):
        assert torch.autograd.gradgradcheck(*self.arguments(name), check_fwd_over_rev=True, check_batched_grad=True)

    def test_third_order(self, name):
        function, inputs = self.arguments(name)

        def gradient_of_squared_gradient(*inputs):
            loss = torch.stack([x.square().sum() for x in function(*inputs)]).sum()
            gradients = torch.autograd.grad(loss, inputs, create_graph=True)
            penalty = torch.stack([g.square().sum() for g in gradients]).sum()
            return torch.autograd.grad(penalty, inputs, create_graph=True)

        assert torch.autograd.gradcheck(gradient_of_squared_gradient, inputs, fast_mode=True)

    def test_batched_cotangents_are_as_one_after_another_and_lose_no_derivative(self, name):
        """PyTorch records nothing there of a Function's derivatives, and would go on without them."""
        function, inputs = self.arguments(name)
        outputs = function(*inputs)
        seeds = [torch.randn(2, *x.shape, dtype=x.dtype) for x in outputs]
        batched = partial(torch.autograd.grad, outputs, inputs, seeds, is_grads_batched=True, retain_graph=True)
        for i in range(2):
            one = torch.autograd.grad(outputs, inputs, [seed[i] for seed in seeds], retain_graph=True)
            assert_close(tuple(x[i] for x in batched()), one)
        with pytest.raises(NotImplementedError, match="would lose derivatives"):
            batched(create_graph=True)

    def test_forward_mode_within_forward_mode_is_refused(self, name):
        """PyTorch drops there what a Function adds to the outer derivative."""
        function, inputs = self.arguments(name)

        def first(y0):
            return function(y0, *inputs[1:])[1]

        torch.func.jacrev(torch.func.jacfwd(first))(inputs[0])
        with pytest.raises(NotImplementedError, match="would lose derivatives"):
            torch.func.jacfwd(torch.func.jacfwd(first))(inputs[0])
