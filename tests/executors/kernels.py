"""The kernels for GPUs held to the sweep step by step; without a GPU they are interpreted."""

import pytest
import torch
from cases import randomize
from tolerance import assert_same

from resolvent.structure.sigma import FUNCTION, NONE, SLOPE, SLOPE_AT, Sigma
from resolvent.sweep import stages
from resolvent.sweep.steps import accumulate, steps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_triton = pytest.importorskip("resolvent.executors.triton.executor")
MARKS = [
    pytest.mark.unchecked,  # run-time type checks would rewrite the kernel
    pytest.mark.usefixtures("uninitialized_memory_is_nan", "schedules_of_their_own"),
]


def check(machine, time_steps=None, history=0, lengths=None, batch=2):
    torch.manual_seed(0)
    n = machine.partition.total
    machine = randomize(machine.to(DEVICE, torch.float32)).requires_grad_(False)
    weight = getattr(machine, machine.stored).div_(n**0.5)
    event = [n] if time_steps is None else [time_steps, n]
    shape = (batch, *(reversed(event) if machine.kind == "conv" else event))
    y0, z0, u0, v0 = (torch.randn(shape, device=DEVICE) for _ in range(4))
    system, activation = machine.system, machine.activation
    inside = None if lengths is None else machine._inside(lengths, y0)

    def sigma(mode, point=None, value=None):
        return Sigma(mode, point, value, inside, history)

    y, z = same(system, sigma(FUNCTION), weight, None, y0, z0)
    if not history:
        y, z = same(system, sigma(FUNCTION), weight, None, y0, None)
        ends = machine.partition.ends
        short = y0.narrow(machine.operator.channel_axis, 0, ends[(len(ends) - 1) // 2])
        same(system, sigma(FUNCTION), weight, machine.bias, short, z0)
    for way in (system, system.dual):
        slopes = ((SLOPE_AT, y), (SLOPE_AT, y, activation(y)), (SLOPE, activation.slope(y)), (NONE,))
        for slope, (u, v) in zip(slopes, ((u0, v0), (None, v0), (u0, v0), (u0, v0)), strict=True):
            same(way, sigma(*slope), weight, None, u, v)
        if not history:
            same(way, sigma(*slopes[1]), weight, None, u0, None)
    if not history:
        assert_same(dict(Q=_triton.cotangent(system, v0, z)), dict(Q=accumulate(system, v0, z, 0)))


def same(*arguments):
    expected = steps(*arguments)
    actual = _triton.sweep(*arguments)
    assert_same(dict(zip("yz", actual, strict=True)), dict(zip("yz", expected, strict=True)))
    return expected


def launches_of(monkeypatch):
    """What sweeps are launched with from now on."""
    used, made = [], _triton.launches

    def launches(*arguments):
        used.append(made(*arguments))
        return used[-1]

    monkeypatch.setattr(_triton, "launches", launches)
    return used


def constants(launches):
    """Those of the kernel, by their names."""
    names = _triton.sweep_kernel.arg_names[-len(launches.constants) :]
    return dict(zip(names, launches.constants, strict=True))


def schedule_of(machine, half=False, transposed=False, steps=1, history=0):
    system = machine.system.dual if transposed else machine.system
    return stages.schedule_of(system, stages.Extent(steps, history), system.codes, half)
