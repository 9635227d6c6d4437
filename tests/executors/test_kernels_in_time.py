"""The kernels for GPUs over many steps: lags, time blocks, histories, and long pasts that are products.

Without a GPU they are interpreted.
"""

import pytest
import torch
from kernels import DEVICE, MARKS, check, same
from torch.testing import assert_close

import resolvent as rv
from resolvent.structure import lagged as _lagged
from resolvent.sweep import plan as _plan
from resolvent.sweep import stages as _stages

pytestmark = MARKS


def test_the_past_of_a_step_is_one_run_as_far_as_it_is_reached():
    machine = rv.RecurrentMachine((9, 10), "tanh", lags=2)
    forward = machine._plan_at(4, 0)
    for plan, near in ((forward, (0, 9)), (forward.dual, (0, 10))):
        stages = _stages.schedule_of(plan, machine.activation.codes).stages
        assert all(others == stop for *_, others, stop, _, _ in stages)
        pulled = [end - begin for *_, begin, end, _, _, _, _ in stages]
        assert pulled == [19 * lags + channels for lags in (0, 1, 2, 2) for channels in near]
    check(machine, 4)


def test_lags_and_time_blocks():
    check(rv.RecurrentMachine((2, 3, 1), "tanh", lags=4, time_block=3), 7)


def test_sequential_with_one_lag():
    check(rv.RecurrentMachine((9, 3), "tanh", lags=1, connections="sequential"), 3)


@pytest.mark.parametrize("time_block", [1, 2])
def test_long_pasts_are_products(time_block, monkeypatch):
    monkeypatch.setattr(_stages, "PULLED", 4)
    check(rv.RecurrentMachine((2, 3), "tanh", lags=3, time_block=time_block), 5)


@pytest.mark.parametrize(("steps", "history"), [(9, 0), (7, 5)])
@pytest.mark.parametrize(("time_block", "span", "lags"), [(1, 2, 7), (2, 1, 8)])
def test_many_lags_are_products_over_chunks(time_block, span, lags, steps, history, monkeypatch):
    """Over as many steps as there are in a span at the longer lags; one by one, or two and, of three, one more."""
    monkeypatch.setattr(_plan, "CHUNK", 2 * time_block)
    monkeypatch.setattr(_stages, "SPAN", span)
    monkeypatch.setattr(_stages, "PULLED", 24 * time_block)
    monkeypatch.setattr(_lagged, "GROUP", 2)
    monkeypatch.setattr(_lagged, "FEW", 3 * 2 * time_block * 4)  # of three samples, those of a chunk at three lags
    machine = rv.RecurrentMachine((9, 3), "tanh", lags=lags, time_block=time_block)
    plan = machine._plan_at(steps, history)
    for way in (plan, plan.dual):
        products = [s for s, _ in _stages.schedule_of(way, machine.activation.codes).steps if not isinstance(s, range)]
        assert all(isinstance(step, _stages.Past) for step in products)
        assert len({len(step.lags) for step in products}) > 1  # the longer lags, and the others
    check(machine, steps + history, history=history, batch=3)


@pytest.mark.parametrize("few", [0, _lagged.FEW])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_long_past_is_what_all_solved_steps_bring(transposed, few, monkeypatch):
    """Over many more steps than it keeps windows of; what is not solved, or not reached, may be anything."""
    monkeypatch.setattr(_lagged, "GROUP", 2)
    monkeypatch.setattr(_lagged, "FEW", few)
    steps, history, lags = 50, 4, range(2, 7)
    W, z = torch.randn(7, 3, 3, dtype=torch.float64), torch.randn(4, steps, 3, dtype=torch.float64)
    y, known = torch.full_like(z, torch.nan), torch.full_like(z, torch.nan)
    add = _lagged.Lagged(3, 6).past(W, transposed, y, known, history, 3)
    chunks = [range(t, min(t + 3, steps)) for t in range(history, steps, 3)]
    for times in reversed(chunks[:-1]) if transposed else chunks:
        solved = range(times.stop, steps) if transposed else range(times.start)
        known[:, solved] = z[:, solved]
        add(times, lags, True)
        for t in times:
            past = [(lag, t + lag if transposed else t - lag) for lag in lags]
            terms = [z[:, s] @ (W[lag] if transposed else W[lag].mT) for lag, s in past if s in solved]
            assert_close(y[:, t], sum(terms, torch.zeros(4, 3, dtype=torch.float64)))


@pytest.mark.parametrize("transposed", [False, True])
def test_weights_of_lags_that_no_step_reaches_may_be_anything(transposed, monkeypatch):
    monkeypatch.setattr(_lagged, "GROUP", 2)
    monkeypatch.setattr(_lagged, "FEW", 0)
    W, z = torch.ones(4, 1, 1), torch.ones(1, 2, 1)
    W[2:] = torch.nan
    y = torch.zeros_like(z)
    time = 0 if transposed else 1
    _lagged.Lagged(1, 3).past(W, transposed, y, z, 0, 1)(range(time, time + 1), range(1, 4), True)
    assert y[0, time] == 1


@pytest.mark.parametrize(("time_block", "steps"), [(1, 4), (2, 5)])
def test_many_lags_that_connect_some_blocks_only(time_block, steps, monkeypatch):
    """Of two chunks, the cotangents of the first are written by one product; of more, each is added to."""
    monkeypatch.setattr(_plan, "CHUNK", 2)
    monkeypatch.setattr(_stages, "PULLED", 24)
    short, long = [[0, 0], [1, 0]], [[1, 1], [0, 1]]
    connections = torch.tensor([short] * time_block + [long] * (7 - time_block)).bool()
    check(rv.RecurrentMachine((9, 3), "tanh", lags=6, time_block=time_block, connections=connections), steps)


@pytest.mark.parametrize("time_block", [1, 2])
def test_history(time_block):
    check(rv.RecurrentMachine((2, 3, 1), "tanh", lags=3, time_block=time_block), 5, history=2)


def test_lengths():
    check(rv.RecurrentMachine((2, 1), "sigmoid", lags=2), 3, lengths=[3, 0, 2], batch=3)


def test_no_steps_after_a_history():
    machine = rv.RecurrentMachine((2, 1), "tanh", lags=2, device=DEVICE).requires_grad_(False)
    x = torch.randn(3, 2, 3, device=DEVICE)
    same(machine.operator, machine._plan(x, 2), machine.activation, machine.weight, x, x, None)
