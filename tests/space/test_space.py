"""Laws of the space of machines: what is pruned, grown or simplified is the function that it should be, exactly."""

import re
from itertools import product
from typing import Any

import pytest
import torch
from cases import SERVED, Case, cases, functional, randomize
from hypothesis import assume, given
from hypothesis import strategies as st
from tolerance import assert_equal
from torch import Tensor
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import weight_norm

import resolvent as rv
from resolvent import space
from resolvent.structure.connections import connect

f64: Any = dict(dtype=torch.float64)
served = cases(kinds=SERVED, widths=(1, 2, 3))


def some_connections(case: Case, seed: int, inside: Tensor | None = None) -> Tensor:
    """Random ones, of those inside of others."""
    machine, generator = case.machine, torch.Generator().manual_seed(seed)
    everything = torch.tensor(connect("all", machine.partition, *_lags(machine)).matrices)
    drawn = everything & (torch.rand(everything.shape, generator=generator) < 0.6)
    return drawn if inside is None else drawn & inside


def inputs(case: Case) -> Tensor:
    return torch.randn(case.shape(case.machine.partition.sizes[0]), **f64)


def outputs(machine: Any, x: Tensor) -> Tensor:
    return machine.split(machine(x))[-1]


def sparse(case: Case, seed: int) -> Any:
    """Its machine with many blocks of W, units of W and biases that are zero."""
    machine, generator = case.machine, torch.Generator().manual_seed(seed)
    n, axes = machine.partition.total, machine.operator.weight_axes
    with torch.no_grad():
        W = machine.weight.movedim(axes, (0, 1))
        W *= (torch.rand(n, n, generator=generator) < 0.4).to(W).reshape(n, n, *(1,) * (W.ndim - 2))
        if machine.bias is not None:
            machine.bias *= (torch.rand(n, generator=generator) < 0.5).to(W)
    return machine


def written(machine: Any, connections: Tensor) -> Any:
    """The same parameters under all connections, with zeros in W where these have none."""
    whole = space.connected(machine, connect("all", machine.partition, *_lags(machine)).matrices)  # pyright: ignore
    with torch.no_grad():
        whole.weight.copy_(machine.weight.where(read(machine) & read(space.connected(machine, connections)), 0))
    return whole


def _lags(machine: Any) -> tuple[int, int]:
    return machine.connections.lags, machine.connections.time_block


def read(machine: Any) -> Tensor:
    return machine.operator.mask(machine.connections.expand(machine.partition))


@given(served, st.integers(0, 99))
def test_a_machine_with_fewer_connections_is_the_one_whose_weight_is_zero_there(case: Case, seed):
    """In value and every derivative up to the second, by points and by what is read of W."""
    assume(case.points(1)[0].numel())
    connections = some_connections(case, seed)
    pruned, zeroed = space.connected(case.machine, connections), written(case.machine, connections)
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
    grown = space.connected(machine, some)
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


@given(served, st.integers(0, 99))
def test_what_is_simplified_is_the_same_function_and_simplified(case: Case, seed):
    machine, x = sparse(case, seed), inputs(case)
    simple = space.simplified(machine)
    assert_equal(outputs(simple, x), outputs(machine, x))
    again = space.simplified(simple)
    assert again.specification == simple.specification
    assert_equal([*again.parameters()], [*simple.parameters()])
    assert simple.partition.total <= machine.partition.total
    assert space.edge_norms(simple)[torch.tensor(simple.connections.matrices)].all()  # no edge is left that is zero


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


@given(served, st.integers(0, 99))
def test_levels_order_the_same_units_in_fewer_blocks(case: Case, seed):
    machine = sparse(case, seed)
    level, permutation = space.levelled(machine)
    n = machine.partition.total
    assert sorted(permutation.tolist()) == list(range(n))
    y0, z0 = case.points(2)
    axis = case.channel_axis
    solution = level.solve(y0.index_select(axis, permutation), z0.index_select(axis, permutation))
    assert_equal([*solution], [x.index_select(axis, permutation) for x in machine.solve(y0, z0)])
    if len({a.name for a in machine.activation.blocks}) == 1:
        assert len(level.partition) <= len(machine.partition)
    assert space.levelled(level)[0].specification == level.specification
    ends = machine.partition.sizes[0], machine.partition.sizes[-1]
    assert (level.partition.sizes[0], level.partition.sizes[-1]) == ends


def test_longer_lags_need_no_later_level():
    connections = torch.zeros(2, 4, 4, dtype=torch.bool)
    connections[0, 1:, 0], connections[1, 2, 1], connections[0, 3] = True, True, torch.tensor([1, 1, 1, 0]) > 0
    machine = rv.RecurrentMachine((1, 1, 1, 1), "tanh", connections=connections, **f64)
    assert space.levelled(machine)[0].partition.sizes == (1, 2, 1)


def test_what_is_made_trains_what_its_machine_trains():
    machine = rv.DenseMachine((2, 3, 1)).eval()
    machine.weight.requires_grad_(False)
    for new in (space.connected(machine, "sequential"), space.simplified(machine), space.inserted(machine, 1, 2)):
        assert not new.training
        assert not new.weight.requires_grad
        assert new.bias.requires_grad
    pruned = space.connected(prune.l1_unstructured(rv.DenseMachine((2, 3, 1)), "weight", 0.5), "all")
    assert pruned.weight.requires_grad


def test_an_infinite_constant_stays_where_it_is():
    machine = rv.DenseMachine((1, 2, 1), ["identity", "tanh", "identity"], **f64)
    with torch.no_grad():
        machine.weight[1, 0] = torch.inf
        machine.bias.fill_(0.5)  # pyright: ignore
    x = torch.rand(3, 1, **f64)
    assert_equal(outputs(space.simplified(machine), x), outputs(machine, x))


def test_norms_in_sixteen_bits_are_summed_in_more():
    machine = rv.DenseMachine((64, 64, 1), dtype=torch.bfloat16)
    with torch.no_grad():
        machine.weight[64:128, :64] = 0.5
        machine.weight[64, 0] = 16
    assert (space.edge_norms(machine)[0, 1, 0] - 35.77).abs() < 0.01


def test_shrinking_by_nothing_keeps_weights_that_are_zero():
    machine = rv.DenseMachine((2, 3, 1))
    with torch.no_grad():
        machine.weight.zero_()
    space.shrink_(machine, 0.0)
    assert not machine.weight.isnan().any()


def test_independent_blocks_are_one_level():
    connections = [[False] * 4, [True, False, False, False], [True, False, False, False], [False, True, True, False]]
    machine = rv.DenseMachine((2, 3, 4, 1), "tanh", connections=connections, **f64)
    level, permutation = space.levelled(machine)
    assert level.partition.sizes == (2, 7, 1)
    assert permutation.tolist() == list(range(10))
    assert level.connections == connect("sequential", level.partition)


def test_constants_go_into_the_bias_of_dense_machines_alone():
    connections = [[False] * 3, [False] * 3, [True, True, False]]
    dense = randomize(rv.DenseMachine((2, 3, 1), ["identity", "sigmoid", "identity"], connections=connections, **f64))
    x = torch.randn(5, 2, **f64)
    simple = space.simplified(dense)
    assert simple.partition.sizes == (2, 1)
    assert_equal(outputs(simple, x), outputs(dense, x))
    conv = randomize(rv.ConvMachine((2, 3, 1), ["identity", "sigmoid", "identity"], connections=connections, **f64))
    assert space.simplified(conv).partition.sizes == (2, 3, 1)  # at the borders it is another constant
    with torch.no_grad():
        conv.bias[2:5] = 0
    assert space.simplified(conv).partition.sizes == (2, 3, 1)  # sigmoid(0) is none
    zero = randomize(rv.ConvMachine((2, 3, 1), ["identity", "tanh", "identity"], connections=connections, **f64))
    with torch.no_grad():
        zero.bias[2:5] = 0
    assert space.simplified(zero).partition.sizes == (2, 1)


@given(served, st.data())
def test_selected_channels_are_those_of_the_machine_in_which_the_others_feed_nothing(case: Case, data):
    machine, n = case.machine, case.machine.partition.total
    keep = torch.tensor(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    keep[0] = keep[-1] = True
    smaller = space.selected(machine, keep)
    cut = space.connected(machine, machine.connections.matrices)  # pyright: ignore  # a copy
    with torch.no_grad():
        cut.weight.movedim(machine.operator.weight_axes, (0, 1))[:, ~keep] = 0
    y0, z0 = case.points(2)
    channels, axis = keep.nonzero().flatten(), case.channel_axis
    expected = [x.index_select(axis, channels) for x in cut.solve(y0, z0)]
    assert_equal([*smaller.solve(y0.index_select(axis, channels), z0.index_select(axis, channels))], expected)


@pytest.mark.parametrize("by", ["edges", "units", "lags"])
@given(case=served, seed=st.integers(0, 99), threshold=st.floats(0, 1.5), priced=st.booleans())
def test_shrinking_satisfies_the_conditions_of_the_optimum(by, case: Case, seed, threshold, priced):
    """W - W₀ + t √|g| price W_g / |W_g| = 0, or |W₀_g| ≤ t √|g| price where W_g = 0; t = 0 is the identity."""
    machine, generator = case.machine, torch.Generator().manual_seed(seed)
    before, mask = machine.weight.detach().clone(), read(machine)
    lags, blocks, n = len(machine.connections.matrices), len(machine.partition), machine.partition.total
    shape = dict(edges=(lags, blocks, blocks), units=(n,), lags=(lags,))[by]
    price = 2 * torch.rand(shape, generator=generator, **f64) if priced else None
    space.shrink_(machine, threshold, by, price)
    after = machine.weight.detach()
    assert_equal(after.where(~mask, 0), before.where(~mask, 0))
    out, into = machine.operator.weight_axes
    blocks_of = machine.partition.blocks
    groups = [*product(*map(range, shape))]
    for group in groups:
        part = torch.zeros_like(mask)
        view = part.movedim((out, into), (0, 1))
        if by == "units":
            view[:, group[0]] = True
        elif by == "edges":
            chosen = part[group[0]] if out else part
            chosen[blocks_of[group[1]], blocks_of[group[2]]] = True
        else:
            (part[group[0]] if out else part)[...] = True
        part &= mask
        if not part.any():
            continue
        least = threshold * part.sum().double().sqrt() * (1 if price is None else price[group])
        W, W0 = after[part], before[part]
        if W.norm() > 0 and least > 0:
            assert_equal(W - W0 + least * W / W.norm(), torch.zeros_like(W))
        elif least > 0:
            assert W0.norm() <= least * (1 + 1e-12)
        else:
            assert torch.equal(W, W0)


@given(served)
def test_edge_norms_are_those_of_the_blocks_of_what_is_read(case: Case):
    machine = case.machine
    W = machine.weight.detach().where(read(machine), 0)
    norms = space.edge_norms(machine)
    for lag in range(len(machine.connections.matrices)):
        matrix = W[lag] if machine.operator.weight_axes[0] else W
        for i, to in enumerate(machine.partition.blocks):
            for j, source in enumerate(machine.partition.blocks):
                assert_equal(norms[lag, i, j], matrix[to, source].norm())


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
