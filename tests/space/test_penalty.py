"""The proximal step of the group lasso satisfies the conditions of its optimum."""

from itertools import product

import pytest
import torch
from cases import Case
from hypothesis import given
from hypothesis import strategies as st
from parts import f64, read, served
from tolerance import assert_equal

import resolvent as rv
from resolvent import space


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
