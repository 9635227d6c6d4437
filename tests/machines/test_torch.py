"""A machine behaves like any other PyTorch layer."""

import copy
import pickle
from functools import partial

import pytest
import torch
from cases import ALL_MACHINES, randomize
from tolerance import assert_equal, assert_near
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import resolvent as rv

every_machine = pytest.mark.parametrize("name", ALL_MACHINES)


def loss_of(machine, parameters, x):
    return functional_call(machine, parameters, (x,)).pow(3).sum()


def build(name):
    case = ALL_MACHINES[name]()
    machine = randomize(case.machine)
    return case, machine, {key: p.detach() for key, p in machine.named_parameters()}


@every_machine
def test_vjp_and_jvp_are_dual(name):
    case, machine, _ = build(name)
    (x,) = case.points(1)
    dx, seed = case.points(2)
    z, pull = vjp(machine, x)[:2]
    assert_equal((jvp(machine, (x,), (dx,))[1] * seed).sum(), (pull(seed)[0] * dx).sum())
    assert_equal(z, machine(x))


@every_machine
def test_forward_and_reverse_jacobians_and_hessians_agree(name):
    case, machine, parameters = build(name)
    (x,) = case.points(1)
    loss = partial(loss_of, machine)
    assert_equal(jacfwd(machine)(x[:2]), jacrev(machine)(x[:2]))
    for argument in (0, 1):
        actual = hessian(loss, argnums=argument)(parameters, x[:2])
        expected = jacrev(jacrev(loss, argnums=argument), argnums=argument)(parameters, x[:2])
        assert_equal(tree_leaves(actual), tree_leaves(expected))


@every_machine
def test_vmap_over_inputs_is_a_batch(name):
    case, machine, _ = build(name)
    (x,) = case.points(1)
    assert_equal(vmap(machine)(x), machine(x))
    assert_equal(vmap(machine, in_dims=-1, out_dims=1)(x.unsqueeze(-1)), machine(x).unsqueeze(1))


@every_machine
def test_vmap_of_grad_gives_per_sample_gradients(name):
    case, machine, parameters = build(name)
    (x,) = case.points(1)
    per_sample = vmap(grad(partial(loss_of, machine)), in_dims=(None, 0))(parameters, x)
    for i in range(len(x)):
        expected = grad(partial(loss_of, machine))(parameters, x[i])
        assert_equal([g[i] for g in per_sample.values()], list(expected.values()))


@every_machine
def test_vmap_over_weights_is_an_ensemble(name):
    case, machine, parameters = build(name)
    (x,) = case.points(1)
    ensemble = {key: torch.stack([p, p + 0.1, p - 0.3]) for key, p in parameters.items()}
    members = [{key: p[i] for key, p in ensemble.items()} for i in range(3)]
    value_and_gradient = torch.func.grad_and_value(partial(loss_of, machine))
    gradients, values = vmap(value_and_gradient, in_dims=(0, None))(ensemble, x)
    per_sample = vmap(vmap(grad(partial(loss_of, machine)), in_dims=(None, 0)), in_dims=(0, None))(ensemble, x)
    inside_out = vmap(vmap(grad(partial(loss_of, machine)), in_dims=(0, None)), in_dims=(None, 0))(ensemble, x)
    assert_equal([g.transpose(0, 1) for g in inside_out.values()], list(per_sample.values()))
    for i, member in enumerate(members):
        expected, value = value_and_gradient(member, x)
        assert_equal(values[i], value)
        assert_equal([g[i] for g in gradients.values()], list(expected.values()))
        assert_equal([g[i].sum(0) for g in per_sample.values()], list(expected.values()))


@pytest.mark.unchecked
def test_an_exported_dual_machine_takes_the_slope_of_a_custom_activation_at_its_input():
    machine = rv.DenseMachine((2, 3), lambda y: y.tanh(), dtype=torch.float64).requires_grad_(False)

    class DualSolve(torch.nn.Module):
        def forward(self, y, u0):
            return machine.dual(y).solve(u0)

    y, other, u0 = (torch.randn(4, 5, dtype=torch.float64) for _ in range(3))
    exported = torch.export.export(DualSolve(), (y, u0)).module()
    assert_equal(exported(other, u0), machine.dual(other).solve(u0))


on_gpu = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"))


@pytest.mark.unchecked
@pytest.mark.parametrize("device", ["cpu", on_gpu])
@pytest.mark.parametrize("name", ["dense", "conv", "recurrent"])
def test_compiled_code_calls_the_executor(name, device):
    case = ALL_MACHINES[name]()
    machine = case.machine.to(device, torch.float32).requires_grad_(False)
    if machine.executor == "torch":
        pytest.skip("there is no fast executor")
    called = []

    def backend(graph, _):
        called.extend(node.target for node in graph.graph.nodes)
        return graph.forward

    x = case.points(1)[0].to(machine.weight)
    torch.compile(machine, backend=backend)(x)
    assert torch.ops.resolvent.sweep in called


@pytest.mark.unchecked
def test_lags_compile_where_the_sweep_runs_step_by_step():
    """As with a custom activation."""
    machine = rv.RecurrentMachine((2, 3), lambda y: y.tanh(), lags=2, dtype=torch.float64)
    x = torch.randn(4, 5, 2, dtype=torch.float64, requires_grad=True)

    def value_and_gradients(program):
        z = program(x)
        return z, *torch.autograd.grad(z.square().sum(), [x, *machine.parameters()])

    compiled = torch.compile(machine, fullgraph=True, backend="aot_eager")
    assert_equal(value_and_gradients(compiled), value_and_gradients(machine))


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor", "ignore:Dynamo detected a call")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("name", ["dense", "conv", "recurrent"])
def test_transforms_inside_of_compiled_code_give_their_derivatives(name, backend):
    case, machine, parameters = build(name)
    (x,) = case.points(1)
    loss = partial(loss_of, machine)
    for transform in (
        grad(loss, (0, 1)),
        lambda parameters, x: jvp(loss, (parameters, x), (parameters, x)),
    ):
        torch._dynamo.reset()
        actual, expected = torch.compile(transform, backend=backend)(parameters, x), transform(parameters, x)
        assert_equal(*map(tree_leaves, (actual, expected)))
    torch._dynamo.reset()
    with pytest.raises(Exception, match="does not have vmap support"):  # Dynamo's refusal, and not a wrong result
        torch.compile(vmap(machine), backend=backend)(x)


@pytest.mark.unchecked
@pytest.mark.parametrize(
    ("name", "backend"),
    # Inductor takes half a minute a machine: one of each kind.
    [(name, "aot_eager") for name in ALL_MACHINES]
    + [(name, "inductor") for name in ("dense", "conv", "recurrent, sequential")],
)
def test_compile_fullgraph_equals_eager(name, backend):
    case, machine, _ = build(name)
    torch._dynamo.reset()
    compiled = torch.compile(machine.solve, fullgraph=True, dynamic=True, backend=backend)
    for batch in (4, 7):
        case.batch = (batch,)
        y0, z0, v0, u0 = case.points(4)
        inputs = [*machine.parameters(), y0.requires_grad_(), z0.requires_grad_()]
        actual, expected = compiled(y0, z0), machine.solve(y0, z0)
        assert_equal(actual, expected)
        assert_equal(
            torch.autograd.grad(actual, inputs, (v0, u0), materialize_grads=True),
            torch.autograd.grad(expected, inputs, (v0, u0), materialize_grads=True),
        )


@every_machine
@pytest.mark.unchecked
def test_export_with_a_dynamic_batch(name):
    case, machine, _ = build(name)
    (x,) = case.points(1)
    batch = torch.export.Dim("batch")
    program = torch.export.export(machine, (x,), dynamic_shapes=({0: batch},))
    for size in (1, 9):
        case.batch = (size,)
        (new,) = case.points(1)
        assert_equal(program.module()(new), machine(new))


@every_machine
def test_copies_and_round_trips_are_the_same_machine(name):
    case, machine, _ = build(name)
    (x,) = case.points(1)
    twin = ALL_MACHINES[name]().machine
    twin.load_state_dict(machine.state_dict())
    for other in (copy.deepcopy(machine), twin):
        assert torch.equal(other(x), machine(x))
        assert repr(other) == repr(machine)
    y = machine.solve(x)[0].detach()
    for derivative in (machine.tangent(y), machine.dual(y)):
        assert_equal(copy.deepcopy(derivative).solve(x, x), derivative.solve(x, x))
    if "custom" not in name:  # a lambda does not pickle
        assert torch.equal(pickle.loads(pickle.dumps(machine))(x), machine(x))


@every_machine
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precisions_agree_with_float64(name, dtype):
    case, machine, _ = build(name)
    (x,) = case.points(1)
    low = copy.deepcopy(machine).to(dtype)
    exact = copy.deepcopy(low).double()
    x = x.to(dtype)
    gradients = []
    for m, point in ((low, x), (exact, x.double())):
        z = m(point)
        assert z.dtype == point.dtype
        gradients.append([z, *torch.autograd.grad(z.sum(), list(m.parameters()))])
    for actual, expected in zip(*gradients, strict=True):
        assert_near(actual, expected)


@every_machine
def test_autocast_computes_low_and_differentiates_to_the_parameters_own_precision(name):
    case, machine, _ = build(name)
    machine.float()
    (x,) = case.points(1)
    with torch.autocast("cpu", torch.bfloat16):
        y, z = machine.solve(x)
        dual = machine.dual(y).solve(torch.ones_like(z))
    assert y.dtype == z.dtype == dual[0].dtype == torch.bfloat16
    z.float().sum().backward()
    gradient = getattr(machine, machine.stored).grad
    assert gradient is not None
    assert gradient.dtype == torch.float32
    assert_near(z, machine(x))
    double = copy.deepcopy(machine).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert double(x.double()).dtype == torch.float64


@every_machine
def test_a_frozen_weight_gets_no_gradient_and_costs_none(name):
    case, machine, _ = build(name)
    (x,) = case.points(1)

    def flops(function):
        with FlopCounterMode(display=False) as counter:
            function()
        return counter.get_total_flops()

    trained = flops(machine(x.requires_grad_()).sum().backward)
    weight = getattr(machine, machine.stored)
    weight.requires_grad_(False)
    weight.grad = None
    z = machine(x)
    of_the_weight = flops(lambda: machine.weight_cotangent(z.detach(), z.detach()))
    assert of_the_weight == trained - flops(z.sum().backward)
    assert (of_the_weight > 0) == (name != "dense, one block")
    assert weight.grad is None


def test_meta_construction_allocates_nothing():
    assert rv.DenseMachine((2, 3), device="meta").weight.is_meta


def test_a_machine_is_a_layer_that_trains():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), rv.DenseMachine((2, 8, 8)), torch.nn.Linear(18, 1))
    x = torch.randn(64, 3)
    target = (x[:, :1] * x[:, 1:2]).sin()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(200):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10
