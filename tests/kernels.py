"""The kernels for GPUs held to the sweep step by step; without a GPU they are interpreted."""

import pytest
import torch
from cases import randomize
from tolerance import assert_same

from resolvent.structure.activation import Slope
from resolvent.sweep import sweep as _sweep

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_triton = pytest.importorskip("resolvent.executors.triton.sweep")
MARKS = [
    pytest.mark.unchecked,  # run-time type checks would rewrite the kernel
    pytest.mark.usefixtures("uninitialized_memory_is_nan", "schedules_of_their_own"),
]


def check(machine, time_steps=None, history=0, lengths=None, batch=2):
    torch.manual_seed(0)
    n = machine.partition.total
    machine = randomize(machine.to(DEVICE, torch.float32)).requires_grad_(False)
    machine.weight.div_(n**0.5)
    event = [n] if time_steps is None else [time_steps, n]
    shape = (batch, *(reversed(event) if machine.kind == "conv" else event))
    y0, z0, u0, v0 = (torch.randn(shape, device=DEVICE) for _ in range(4))
    plan = machine._plan(y0, history)
    inside = None if lengths is None else machine._inside(lengths, y0)
    sigma = machine.activation
    y, z = same(machine.operator, plan, sigma, machine.weight, y0, z0, inside)
    if not history:
        y, z = same(machine.operator, plan, sigma, machine.weight, y0, None, inside)
        short = y0.narrow(machine.operator.channel_axis, 0, n // 2)
        same(machine.operator, plan, sigma, machine.weight, short, z0, inside, machine.bias)
    for way in (plan, plan.dual):
        slopes = (Slope(sigma, y, None), Slope(sigma, y, sigma(y)), sigma.slope(y), None)
        for slope, (u, v) in zip(slopes, ((u0, v0), (None, v0), (u0, v0), (u0, v0)), strict=True):
            same(machine.operator, way, slope, machine.weight, u, v, inside)
        if not history:
            same(machine.operator, way, slopes[1], machine.weight, u0, None, inside)
    if not history:
        expected = torch.zeros_like(machine.weight)
        for rectangle in plan.rectangles:
            machine.operator.accumulate_cotangent(expected, v0, z, rectangle)
        assert_same(dict(Q=_triton.cotangent(machine.operator, plan, v0, z)), dict(Q=expected))


def same(*arguments):
    expected = _sweep._step_by_step(*arguments)
    actual = _triton.sweep(*arguments)
    assert_same(dict(zip("yz", actual, strict=True)), dict(zip("yz", expected, strict=True)))
    return expected


def launches_of(monkeypatch):
    """What sweeps are launched with from now on."""
    used, made = [], _triton._launches

    def launches(*arguments):
        used.append(made(*arguments))
        return used[-1]

    monkeypatch.setattr(_triton, "_launches", launches)
    return used


def constants(launches):
    """Those of the kernel, by their names."""
    names = _triton.sweep_kernel.arg_names[-len(launches.constants) :]
    return dict(zip(names, launches.constants, strict=True))
