"""The kernels for GPUs over many steps: lags, time blocks, histories, and long pasts that are products.

Without a GPU they are interpreted.
"""

import pytest
import torch
from kernels import DEVICE, MARKS, check, same, schedule_of

import resolvent as rv
from resolvent.structure.sigma import ITSELF, SLOPE, Sigma
from resolvent.sweep import cut as _cut
from resolvent.sweep import plan as _plan

pytestmark = MARKS


def test_the_past_of_a_step_is_one_run_as_far_as_it_is_reached():
    machine = rv.RecurrentMachine((9, 10), "tanh", lags=2)
    for transposed, near in ((False, (0, 9)), (True, (0, 10))):
        stages = schedule_of(machine, transposed=transposed, steps=4).stages
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
    monkeypatch.setattr(_cut, "PULLED", 4)
    check(rv.RecurrentMachine((2, 3), "tanh", lags=3, time_block=time_block), 5)


@pytest.mark.parametrize(("steps", "history"), [(9, 0), (7, 5)])
@pytest.mark.parametrize(("time_block", "lags"), [(1, 7), (2, 8)])
def test_many_lags_are_products_over_chunks(time_block, lags, steps, history, monkeypatch):
    monkeypatch.setattr(_plan, "CHUNK", 2 * time_block)
    monkeypatch.setattr(_cut, "PULLED", 24 * time_block)
    machine = rv.RecurrentMachine((9, 3), "tanh", lags=lags, time_block=time_block)
    for transposed in (False, True):
        schedule = schedule_of(machine, transposed=transposed, steps=steps + history, history=history)
        products = [step for step, _ in schedule.steps if not isinstance(step, range)]
        later = [(step.source if transposed else step.to).times for step in products]
        assert max(map(len, later)) == 2 * time_block
        assert all((times.start - history) % (2 * time_block) == 0 for times in later)
    check(machine, steps + history, history=history, batch=3)


@pytest.mark.parametrize("pulled", [1, 100])
def test_weights_of_lags_that_no_step_reaches_may_be_anything(pulled, monkeypatch):
    monkeypatch.setattr(_cut, "PULLED", pulled)
    machine = rv.RecurrentMachine((1,), "tanh", lags=3, bias=False, device=DEVICE).requires_grad_(False)
    machine.weight.fill_(1)[2:] = torch.nan
    x = torch.ones(1, 2, 1, device=DEVICE)
    for way, sigma in ((machine.system, ITSELF), (machine.system.dual, Sigma(SLOPE, x))):
        y, _ = same(way, sigma, machine.weight, None, x, None)
        assert y.isfinite().all()


@pytest.mark.parametrize(("time_block", "steps"), [(1, 4), (2, 5)])
def test_many_lags_that_connect_some_blocks_only(time_block, steps, monkeypatch):
    """Of two chunks, the cotangents of the first are written by one product; of more, each is added to."""
    monkeypatch.setattr(_plan, "CHUNK", 2)
    monkeypatch.setattr(_cut, "PULLED", 24)
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
    same(machine.system, ITSELF._replace(history=2), machine.weight, None, x, x)
