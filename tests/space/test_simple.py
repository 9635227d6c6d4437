"""Fewer units, edges and blocks that are the same function."""

import torch
from cases import Case, randomize
from hypothesis import given
from hypothesis import strategies as st
from parts import f64, inputs, outputs, served, sparse
from tolerance import assert_equal

import resolvent as rv
from resolvent import space
from resolvent.structure.connections import connect


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


def test_an_infinite_constant_stays_where_it_is():
    machine = rv.DenseMachine((1, 2, 1), ["identity", "tanh", "identity"], **f64)
    with torch.no_grad():
        machine.weight[1, 0] = torch.inf
        machine.bias.fill_(0.5)  # pyright: ignore
    x = torch.rand(3, 1, **f64)
    assert_equal(outputs(space.simplified(machine), x), outputs(machine, x))


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
