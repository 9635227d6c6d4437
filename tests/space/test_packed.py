"""A packed machine is the machine, of which the parameter is what is read of W and nothing else."""

import copy
import re
from typing import Any

import pytest
import torch
from cases import Case, functional, outputs_and_gradients
from hypothesis import assume, given
from hypothesis import strategies as st
from parts import inputs, read, served
from tolerance import assert_equal
from torch.nn.utils import prune, spectral_norm
from torch.nn.utils.parametrizations import weight_norm

import resolvent as rv
from resolvent import space
from resolvent.executors import native


def entries(machine: Any, W: torch.Tensor) -> torch.Tensor:
    """What is read of W, rectangle after rectangle."""
    return torch.cat([torch.zeros(0).to(W), *(machine.operator.entries(W, r).flatten() for r in whole(machine))])


def whole(machine: Any) -> Any:
    return [r._replace(start=None) for r in machine.system.rectangles]


@given(served, st.integers(0, 99))
def test_a_packed_machine_is_the_machine(case: Case, seed):
    """In value and all derivatives of the first order; those by its entries are those by W, where it is read."""
    machine, points = case.machine, case.points(4)
    state = torch.get_rng_state()
    packed = space.packed(machine)
    assert torch.equal(torch.get_rng_state(), state)
    assert packed.stored == "entries"
    assert packed.entries.numel() == read(machine).sum() == packed.system.entries
    assert torch.equal(packed.weight, machine.weight.where(read(machine), 0))
    assert packed.executor == machine.executor == ("torch" if native.extension is None else "native")
    actual, expected = (outputs_and_gradients(m, *points) for m in (packed, machine))
    expected |= {"Q": entries(machine, expected["Q"]), "gradient 2": entries(machine, expected["gradient 2"])}
    assert_equal([*actual.values()], [*expected.values()])
    assert torch.equal(space.unpacked(packed).weight, packed.weight)


@given(served)
def test_its_second_derivatives_are_the_machines(case: Case):
    assume(case.points(1)[0].numel())
    y0, z0, u0, v0 = case.points(4)
    results = []
    for machine in (space.packed(case.machine), case.machine):
        f, values = functional(machine)
        arguments = [x.clone().requires_grad_() for x in (values[0], y0, z0, *values[1:])]
        solution = f(*arguments[1:3], arguments[0], *arguments[3:])
        first = torch.autograd.grad(solution, arguments, (u0, v0), create_graph=True)
        W = first[0] if machine.system.packed else entries(machine, first[0])
        total = torch.stack([g.sin().sum() for g in (W, *first[1:])]).sum()
        second = [*torch.autograd.grad(total, arguments, materialize_grads=True)]
        second[0] = second[0] if machine.system.packed else entries(machine, second[0])
        results.append([W, *first[1:], *second])
    assert_equal(*results)


@given(served)
def test_ensembles_of_packed_weights_are_solved_member_by_member(case: Case):
    packed = space.packed(case.machine)
    f, (values, *others) = functional(packed)
    y0, z0 = case.points(2)
    many = torch.stack([values, 2 * values])
    actual = torch.func.vmap(lambda W: f(y0, z0, W, *others))(many)
    for i, W in enumerate(many):
        assert_equal([x[i] for x in actual], [*f(y0, z0, W, *others)])


@pytest.mark.parametrize("kind", [rv.DenseMachine, rv.ConvMachine, rv.RecurrentMachine])
def test_it_is_drawn_as_the_machine_is(kind):
    machines = []
    for packed in (False, True):
        torch.manual_seed(3)
        machines.append(kind((2, 3, 1), "relu", packed=packed))
    assert torch.equal(machines[1].entries, entries(machines[0], machines[0].weight))


def test_an_optimiser_keeps_state_for_what_is_read_alone():
    """And weight decay acts on that."""
    packed = space.packed(rv.DenseMachine((2, 3, 1)))
    optimiser = torch.optim.AdamW(packed.parameters())
    packed(torch.randn(4, 2)).sum().backward()
    optimiser.step()
    assert [tuple(x.shape) for x in optimiser.state[packed.entries].values()] == [(), (11,), (11,)]
    copied = copy.deepcopy(packed)
    assert copied.entries is not packed.entries
    assert torch.equal(copied.weight, packed.weight)


@pytest.mark.unchecked
def test_packed_is_a_boolean():
    with pytest.raises(TypeError, match="packed must be True or False, got 'no'"):
        rv.DenseMachine((2, 3), packed="no")  # pyright: ignore


def test_what_is_kept_for_later_calls_serves_in_every_mode():
    """Places and groups are kept, also if they are first asked for in inference mode or with another default device."""
    for sizes, context in (((2, 4, 3), torch.inference_mode()), ((2, 5, 3), torch.device("meta"))):
        unseen: Any = rv.DenseMachine(sizes, packed=True, device="meta")  # for which nothing was asked yet
        with context:
            unseen.system.places("cpu")
            space.penalty.groups_of(unseen.system, "edges")
        machine: Any = rv.DenseMachine(sizes, packed=True)
        assert machine.system is unseen.system
        machine.weight.sum().backward()
        assert machine.entries.grad is not None
        assert space.GroupLasso(machine).groups.device.type == "cpu"


def test_torchinfo_counts_what_is_read():
    torchinfo = pytest.importorskip("torchinfo")
    packed = space.packed(rv.DenseMachine((4, 16, 16, 2)))
    assert torchinfo.summary(packed, (8, 4), verbose=0).total_params == packed.system.entries + 38 == 494


@pytest.mark.unchecked
def test_compiled_it_is_the_same():
    packed = space.packed(rv.DenseMachine((2, 3, 1), dtype=torch.float64))
    x = torch.randn(4, 2, dtype=torch.float64)
    gradients = []
    for call in (packed, torch.compile(packed, fullgraph=True)):
        z = call(x)
        gradients.append([z, *torch.autograd.grad(z.sin().sum(), [packed.entries, packed.bias])])
    assert_equal(*gradients)


@given(served)
def test_over_jets_it_is_the_same(case: Case):
    assume(isinstance(case.machine, rv.DenseMachine) and inputs(case).numel())
    x = rv.jet(inputs(case), 2, names="xyz"[: case.machine.partition.sizes[0]])
    assert_equal(space.packed(case.machine)(x).coefficients, case.machine(x).coefficients)


def test_pruning_sees_the_entries():
    packed = space.packed(rv.DenseMachine((2, 3, 1)))
    dense = copy.deepcopy(packed)
    prune.l1_unstructured(packed, "entries", 0.5)
    x = torch.randn(4, 2)
    assert (packed.weight != 0).sum() <= 11 - 5
    dense.load_state_dict({"entries": packed.entries.detach(), "bias": packed.bias})
    assert_equal(packed(x), dense(x))
    prune.remove(packed, "entries")
    assert_equal(packed(x), dense(x))


def test_weight_norm_sees_the_entries():
    packed = weight_norm(space.packed(rv.DenseMachine((2, 3, 1))), "entries", dim=None)  # pyright: ignore  # it is documented
    packed(torch.randn(4, 2)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in packed.parameters())


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "prune": (lambda m: prune.l1_unstructured(m, "weight", 0.5), TypeError, "computed from its entries: prune those"),
    "weight_norm": (lambda m: weight_norm(m), ValueError, "does not have a parameter.* with name 'weight'"),
    "spectral_norm": (lambda m: spectral_norm(m), KeyError, "weight"),
    "a new weight": (
        lambda m: setattr(m, "weight", torch.zeros(6, 6)),
        AttributeError,
        "^the weight of a packed machine is computed from its entries: change those$",
    ),
    "a new parameter": (
        lambda m: setattr(m, "weight", torch.nn.Parameter(torch.zeros(6, 6))),
        AttributeError,
        "computed from its entries",
    ),
    "functional_call": (
        lambda m: torch.func.functional_call(m, {"weight": torch.zeros(6, 6)}, torch.ones(2)),
        AttributeError,
        "computed from its entries",
    ),
    "a state with W": (
        lambda m: m.load_state_dict(rv.DenseMachine((2, 3, 1)).state_dict()),
        RuntimeError,
        r'Missing key\(s\) in state_dict: "entries"',
    ),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("what", REFUSED)
def test_what_wants_the_weight_for_a_parameter_is_refused_by_name(what):
    call, kind, message = REFUSED[what]
    packed = space.packed(rv.DenseMachine((2, 3, 1)))
    before, x = copy.deepcopy(packed), torch.randn(4, 2)
    with pytest.raises(kind, match=message) as error:
        call(packed)
    assert re.search("weight|entries", str(error.value))
    assert_equal(packed(x), before(x))
    assert {*packed.state_dict()} == {"entries", "bias"}


def test_entries_of_another_shape_are_refused():
    packed = space.packed(rv.DenseMachine((2, 3, 1))).requires_grad_(False)
    packed.entries.data = torch.zeros(12)
    with pytest.raises(ValueError, match=r"entries has shape \(12,\), the machine needs \(11,\)"):
        packed(torch.ones(2))


@given(served, st.floats(0, 2), st.sampled_from(["edges", "units", "lags"]))
def test_shrinking_it_is_shrinking_the_machine(case: Case, threshold, by):
    packed, machine = space.packed(case.machine), space.unpacked(case.machine)
    space.shrink_(packed, threshold, by)
    space.shrink_(machine, threshold, by)
    assert torch.equal(packed.weight, machine.weight.where(read(machine), 0))


def test_few_connections_are_packed_unless_it_is_said():
    machine = rv.DenseMachine((4,) * 4)
    assert space.connected(machine, "all").stored == "weight"
    assert space.connected(machine, "sequential").stored == "entries"
    assert space.connected(machine, "sequential", packed=False).stored == "weight"
    assert space.connected(space.packed(machine), "all").stored == "entries"
