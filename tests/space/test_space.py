"""Laws of the space of machines: what is pruned, grown or simplified is the function that it should be, exactly."""

import re
from typing import Any

import pytest
import torch
from cases import Case, functional
from hypothesis import assume, given
from hypothesis import strategies as st
from parts import inputs, outputs, read, served, sparse
from tolerance import assert_equal
from torch import Tensor
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

import resolvent as rv
from resolvent import space
from resolvent.structure.connections import connect


def some_connections(case: Case, seed: int, inside: Tensor | None = None) -> Tensor:
    """Random ones, of those inside of others."""
    machine, generator = case.machine, torch.Generator().manual_seed(seed)
    everything = torch.tensor(connect("all", machine.partition, *_lags(machine)).matrices)
    drawn = everything & (torch.rand(everything.shape, generator=generator) < 0.6)
    return drawn if inside is None else drawn & inside


def written(machine: Any, connections: Tensor) -> Any:
    """The same parameters under all connections, with zeros in W where these have none."""
    everything: Any = connect("all", machine.partition, *_lags(machine)).matrices
    whole = space.connected(machine, everything, packed=False)
    with torch.no_grad():
        whole.weight.copy_(machine.weight.where(read(machine) & read(space.connected(machine, connections)), 0))
    return whole


def _lags(machine: Any) -> tuple[int, int]:
    return machine.connections.lags, machine.connections.time_block


@given(served, st.integers(0, 99))
def test_a_machine_with_fewer_connections_is_the_one_whose_weight_is_zero_there(case: Case, seed):
    """In value and every derivative up to the second, by points and by what is read of W."""
    assume(case.points(1)[0].numel())
    connections = some_connections(case, seed)
    pruned, zeroed = space.connected(case.machine, connections, packed=False), written(case.machine, connections)
    y0, z0, u0, v0 = case.points(4)
    results, mask = [], read(pruned)
    for machine in (pruned, zeroed):
        f, values = functional(machine)
        arguments = [x.clone().requires_grad_() for x in (values[0], y0, z0, *values[1:])]
        y, z = f(*arguments[1:3], arguments[0], *arguments[3:])
        by_weight, *others = torch.autograd.grad((y, z), arguments, (u0, v0), create_graph=True)
        first = [by_weight.where(mask, 0), *others]
        total = torch.stack([g.sin().sum() for g in first]).sum()
        by_weight, *others = torch.autograd.grad(total, arguments, materialize_grads=True)
        results.append([y, z, *first, by_weight.where(mask, 0), *others])
    assert_equal(*results)


@given(served, st.integers(0, 99))
def test_more_connections_are_the_same_function_and_their_gradient_was_known(case: Case, seed):
    """Q of the edges that do not exist yet: the dual's v times z, as the machine with them has it."""
    assume(case.points(1)[0].numel())
    some = some_connections(case, seed)
    machine = space.connected(case.machine, some_connections(case, seed + 1, some))
    grown = space.connected(machine, some, packed=False)
    y0, v0 = case.points(2)
    y, z = machine.solve(y0)
    assert_equal(grown.solve(y0), (y, z))
    with torch.no_grad():
        _, v = machine.dual(y).solve(None, v0)
    (gradient,) = torch.autograd.grad(grown.solve(y0)[0], grown.weight, v0)
    assert_equal(gradient, grown.weight_cotangent(v, z.detach()))


@given(served, st.integers(0, 99))
def test_pruning_twice_is_pruning_to_what_is_inside(case: Case, seed):
    first = some_connections(case, seed)
    second = some_connections(case, seed + 1, first)
    twice, once = space.connected(space.connected(case.machine, first), second), space.connected(case.machine, second)
    assert twice.specification == once.specification
    assert torch.equal(twice.weight, once.weight)


@given(served, st.data())
def test_a_block_that_is_inserted_changes_nothing_and_learns(case: Case, data):
    machine, x = case.machine, inputs(case)
    assume(len(machine.partition) > 1)
    at = data.draw(st.integers(1, len(machine.partition) - 1))
    grown = space.inserted(machine, at, 2, "silu")
    assert grown.partition.sizes == (*machine.partition.sizes[:at], 2, *machine.partition.sizes[at:])
    before, after = [*machine.split(machine(x))], [*grown.split(grown(x))]
    del after[at]
    assert_equal(after, before)
    if x.numel() and x.abs().max() > 0:
        out = outputs(grown, x)
        (Q,) = torch.autograd.grad(out, grown.weight, torch.randn_like(out))
        start, (_, into) = sum(machine.partition.sizes[:at]), grown.operator.weight_axes
        assert Q.narrow(into, start, 2).count_nonzero()


def test_what_is_made_trains_what_its_machine_trains():
    machine = rv.DenseMachine((2, 3, 1)).eval()
    machine.weight.requires_grad_(False)
    for new in (space.connected(machine, "sequential"), space.simplified(machine), space.inserted(machine, 1, 2)):
        assert not new.training
        assert not new.weight.requires_grad
        assert new.bias.requires_grad
    pruned = space.connected(prune.l1_unstructured(rv.DenseMachine((2, 3, 1)), "weight", 0.5), "all")
    assert pruned.weight.requires_grad


@given(served, st.data())
def test_selected_channels_are_those_of_the_machine_in_which_the_others_feed_nothing(case: Case, data):
    machine, n = case.machine, case.machine.partition.total
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    keep[0] = keep[-1] = True
    smaller = space.selected(machine, keep)
    cut = space.unpacked(machine)  # a copy
    with torch.no_grad():
        cut.weight.movedim(machine.operator.weight_axes, (0, 1))[:, ~keep] = 0
    y0, z0 = case.points(2)
    channels, axis = keep.nonzero().flatten(), case.channel_axis
    expected = [x.index_select(axis, channels) for x in cut.solve(y0, z0)]
    assert_equal([*smaller.solve(y0.index_select(axis, channels), z0.index_select(axis, channels))], expected)


@given(case=served, seed=st.integers(0, 99))
def test_machines_of_the_space_are_saved_bit_for_bit_and_nothing_is_drawn(tmp_path_factory, case: Case, seed):
    machine = sparse(case, seed)
    state = torch.get_rng_state()
    made = [
        space.connected(machine, some_connections(case, seed)),
        space.simplified(machine),
        space.levelled(machine)[0],
    ]
    made.append(space.selected(machine, torch.ones(machine.partition.total, dtype=torch.bool)))
    assert torch.equal(torch.get_rng_state(), state)
    for i, new in enumerate(made):
        folder = tmp_path_factory.mktemp("machines") / str(i)
        new.save(folder)
        again: Any = rv.load(folder)
        assert again.specification == new.specification
        assert all(torch.equal(a, b) for a, b in zip(again.parameters(), new.parameters(), strict=True))
        assert all(p.data_ptr() != q.data_ptr() for p, q in zip(new.parameters(), machine.parameters(), strict=True))


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "a mask of another length": (
        lambda m: space.selected(m, [True, False]),
        ValueError,
        "keep is torch.bool of shape (2,), needed is a boolean for each of the 6 channels: sizes=(2, 3, 1)",
    ),
    "no inputs": (
        lambda m: space.selected(m, [False, False, True, True, True, True]),
        ValueError,
        "keep leaves nothing of the first block, which takes the input: sizes=(2, 3, 1)",
    ),
    "a block before the input": (
        lambda m: space.inserted(m, 3, 1),
        ValueError,
        "at=3 must be between the input and the output, from 1 to 2: sizes=(2, 3, 1)",
    ),
    "a network": (
        lambda m: space.connected(rv.Network(m), "all"),  # pyright: ignore
        TypeError,
        "a Network is none of the library's kinds, dense, conv, recurrent: take its .machine",
    ),
    "a parametrized weight": (
        lambda m: space.simplified(weight_norm(m)),  # pyright: ignore
        TypeError,
        "a ParametrizedDenseMachine is none of the library's kinds, dense, conv, recurrent: its weight is computed, "
        "remove the parametrization first",
    ),
    "a pruned weight, in place": (
        lambda m: space.shrink_(prune.l1_unstructured(m, "weight", 0.5), 0.1),
        TypeError,
        "weight is computed from other parameters, as by pruning: make it one again first",
    ),
    "negative prices": (
        lambda m: space.shrink_(m, 0.1, "units", -torch.ones(6)),
        ValueError,
        "price of shape (6,): by units, (6,) numbers of at least 0 are needed",
    ),
    "another way to group": (
        lambda m: space.shrink_(m, 0.1, "rows"),  # pyright: ignore
        ValueError,
        "by='rows' is unknown: use 'edges', 'units' or 'lags'",
    ),
    "a negative threshold": (
        lambda m: space.shrink_(m, -0.1),
        ValueError,
        "threshold must be at least 0, got -0.1",
    ),
    "prices of another shape": (
        lambda m: space.shrink_(m, 0.1, "units", torch.ones(3)),
        ValueError,
        "price of shape (3,): by units, (6,) numbers of at least 0 are needed",
    ),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_and_nothing_is_changed(what):
    call, kind, message = BAD[what]
    machine = rv.DenseMachine((2, 3, 1))
    before = machine.weight.detach().clone()
    with pytest.raises(kind, match=f"^{re.escape(message)}$"):
        call(machine)
    if type(machine) is rv.DenseMachine and "weight" in dict(machine.named_parameters()):
        assert torch.equal(machine.weight, before)


def test_an_operator_of_ones_own_is_refused_by_name():
    from graph import GraphMachine, karate

    machine = GraphMachine((2, 3), karate()[0][:4, :4])
    with pytest.raises(TypeError, match="a GraphMachine is none of the library's kinds, dense, conv, recurrent"):
        space.connected(machine, "sequential")
