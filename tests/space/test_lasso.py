"""Adam with the group lasso ends where the penalised loss has its optimum."""

import copy
from typing import Any

import pytest
import torch
from cases import Case
from hypothesis import assume, given
from hypothesis import strategies as st
from parts import f64, served
from tolerance import assert_equal

import resolvent as rv
from resolvent import space
from resolvent.space.penalty import groups_of, sums


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("by", ["edges", "units"])
def test_it_ends_at_the_optimum_of_the_group_lasso(by, packed):
    """∇_g + λ √|g| W_g / |W_g| = 0, or |∇_g| ≤ λ √|g| where W_g = 0; of the bias, ∇ = 0. The loss is convex."""
    generator, penalty = torch.Generator().manual_seed(0), 0.12
    machine: Any = rv.DenseMachine((4, 3, 2), "identity", connections=[[False] * 3] + [[True, False, False]] * 2, **f64)
    machine = space.packed(machine) if packed else machine
    x, mixing = torch.randn(64, 4, generator=generator, **f64), torch.randn(4, 5, generator=generator, **f64)
    mixing *= torch.tensor([1.0, 0.3, 0.05, 0.02], **f64)[:, None] * torch.tensor([1, 1, 1, 0.02, 0.02], **f64)
    targets = x @ mixing + 0.5
    optimizer = space.GroupLasso(machine, lr=0.02, by=by)

    def gradient() -> None:
        optimizer.zero_grad()
        ((machine(x)[:, 4:] - targets).square().sum(1).mean()).backward()

    for i in range(4000):
        gradient()
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * 0.998**i
        optimizer.step(penalty=penalty)
    gradient()
    groups, shape = groups_of(machine.system, by)
    weight = getattr(machine, machine.stored)
    W, slope = (x if packed else machine.system.packed_weight(x) for x in (weight.detach(), weight.grad))
    norm, count = sums(W.square(), groups, shape).sqrt(), sums(torch.ones_like(W), groups, shape)
    assert (norm[count > 0] == 0).any()
    assert (norm > 0).any()
    for g in range(shape.numel()):
        of_g, bound = groups == g, penalty * count.flatten()[g].sqrt()
        if norm.flatten()[g] > 0:
            error = slope[of_g] + bound * W[of_g] / norm.flatten()[g]
            assert error.abs().max() < 1e-3 * bound
        else:
            assert slope[of_g].norm() <= bound * (1 + 1e-9)
    assert machine.bias.grad[4:].abs().max() < 1e-3


@given(served, st.sampled_from(["edges", "units", "lags"]))
def test_packed_or_not_it_takes_the_same_steps_and_what_is_not_read_stays(case: Case, by):
    assume(case.points(1)[0].numel())
    machine = case.machine
    packed, before = space.packed(machine), machine.weight.detach().clone()
    (x,) = case.points(1)
    for m in (machine, packed):
        optimizer = space.GroupLasso(m, by=by)
        for _ in range(3):
            optimizer.zero_grad()
            m(x).square().sum().backward()
            optimizer.step(penalty=0.5)
    read = machine.operator.mask(machine.connections.expand(machine.partition))
    assert_equal(packed.weight, machine.weight.detach().where(read, 0))
    assert torch.equal(machine.weight[~read], before[~read])


def test_its_first_step_is_as_long_as_the_rate_says():
    """In each group, the root mean square of the change; of a bias, each entry's change."""
    machine: Any = rv.DenseMachine((3, 4, 2), **f64)
    before = machine.weight.detach().clone(), machine.bias.detach().clone()
    optimizer = space.GroupLasso(machine, lr=0.01, by="edges")
    machine(torch.randn(8, 3, **f64)).sin().sum().backward()
    optimizer.step()
    change = machine.weight.detach() - before[0]
    for to, source in ((slice(3, 7), slice(0, 3)), (slice(7, 9), slice(0, 3)), (slice(7, 9), slice(3, 7))):
        torch.testing.assert_close(change[to, source].square().mean().sqrt().item(), 0.01, rtol=1e-4, atol=0)
    step = (machine.bias.detach() - before[1]).abs()
    torch.testing.assert_close(step, torch.full_like(step, 0.01), rtol=1e-4, atol=0)


def test_copies_take_the_same_steps_and_bad_numbers_are_refused():
    machine = rv.ConvMachine((1, 2), kernel_size=(3, 3)).to(memory_format=torch.channels_last)  # pyright: ignore
    optimizer = space.GroupLasso(machine)
    machine(torch.randn(2, 1, 4, 4)).sum().backward()
    other: Any = copy.deepcopy(optimizer)
    for o in (optimizer, other):
        o.step(penalty=0.1)
    assert other.machine is not machine
    before = machine.weight.detach().clone()
    for penalty in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=f"penalty must be at least 0, got {penalty}"):
            optimizer.step(penalty=penalty)
    assert torch.equal(machine.weight, before)
    with pytest.raises(ValueError, match=r"lr=-1\.0 must be positive, and betas"):
        space.GroupLasso(machine, lr=-1.0)
    half = rv.DenseMachine((2, 3, 1), dtype=torch.float16)
    halves = space.GroupLasso(half)
    half(torch.full((4, 2), 1e-3, dtype=torch.float16)).sum().mul(1e-3).backward()
    halves.step(penalty=1e-9)
    assert half.weight.isfinite().all()
    assert half.weight.any()


def test_its_state_is_saved_and_loaded():
    machines = [rv.DenseMachine((2, 3, 1)) for _ in range(2)]
    machines[1].load_state_dict(machines[0].state_dict())
    first, second = (space.GroupLasso(m, by="units") for m in machines)
    x = torch.randn(8, 2)

    def step(machine: Any, optimizer: Any) -> None:
        loss = machine(x).square().sum()
        loss.backward()
        assert optimizer.step(penalty=0.01) is None
        optimizer.zero_grad()

    step(machines[0], first)
    machines[1].load_state_dict(machines[0].state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for machine, optimizer in zip(machines, (first, second), strict=True):
        step(machine, optimizer)
    assert torch.equal(machines[0].weight, machines[1].weight)
