"""The native sweep over numbers, held to the sweep step by step."""

import pytest
import torch
from cases import SERVED, Case, cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import NUMBERS
from tolerance import assert_same

import resolvent as rv
from resolvent.executors import native
from resolvent.structure.activation import ACTIVATIONS
from resolvent.structure.sigma import FUNCTION, NONE, SLOPE, SLOPE_AT, Sigma
from resolvent.sweep.steps import accumulate, steps

pytestmark = [
    pytest.mark.unchecked,
    pytest.mark.usefixtures("uninitialized_memory_is_nan"),
    pytest.mark.skipif(native.extension is None, reason="the extension was not built"),
]


def points(case: Case, numbers, count: int):
    shape = list(case.shape(case.machine.partition.total))
    shape.insert(len(shape) - case.machine.operator.event_ndim, numbers.size)
    return (torch.randn(shape, dtype=case.machine.weight.dtype) / 2 for _ in range(count))


def check(case: Case, numbers) -> None:
    machine, system = case.machine.requires_grad_(False), case.machine.system
    y0, z0, y, source = points(case, numbers, 4)
    inside = (torch.rand(y0.narrow(-1 - machine.operator.event_ndim, 0, 1).shape) < 0.8).expand(y0.shape).contiguous()
    activations, weight = machine.activation, machine.weight
    value = activations(y, numbers)
    sigmas = [(FUNCTION,), (NONE,), (SLOPE, activations.slope(y, numbers)), (SLOPE_AT, y), (SLOPE_AT, y, value)]
    for way in (system, system.dual):
        for mode, *tensors in sigmas:
            for more in ({}, {"inside": inside}):
                sigma = Sigma(mode, *tensors, numbers=numbers, **more)
                bias = machine.bias if way is system else None
                short = y0.narrow(machine.operator.channel_axis, 0, machine.partition.sizes[0])
                for both in ((y0, z0), (y0, None), (None, z0), *([(short, z0), (z0, short)] if way is system else [])):
                    actual = native.sweep(way, sigma, weight, bias, *both)
                    expected = steps(way, sigma, weight, bias, *both)
                    assert_same(dict(zip("yz", actual, strict=True)), dict(zip("yz", expected, strict=True)))
    at = Sigma(SLOPE_AT, y, numbers=numbers)
    _, v = steps(system.dual, at, weight, None, y0, z0)
    made = native.gradients(system.dual, at, weight, y0, z0, source, True, machine.partition.sizes[0])
    assert made is not None
    event_ndim, axis = machine.operator.event_ndim, machine.operator.channel_axis
    real = v.select(-1 - event_ndim, 0)
    of_bias = real.sum([i for i in range(real.ndim) if i != real.ndim + axis]) if real.ndim > 1 else real
    of_y0 = v.narrow(axis, 0, machine.partition.sizes[0])
    v, source = (x.flatten(-2 - event_ndim, -1 - event_ndim) if x.ndim > 1 + event_ndim else x for x in (v, source))
    expected = dict(Q=accumulate(system, v, source, 0), bias=of_bias, y0=of_y0)
    assert_same(dict(zip(expected, made, strict=True)), expected)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases(kinds=SERVED, widths=(1, 2, 3, 9)), st.sampled_from([*NUMBERS]))
def test_the_native_sweep_over_numbers_is_the_one_step_by_step(case, which):
    check(case, NUMBERS[which])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_has_the_same_series_in_native_code(activation, dtype):
    """To the sixth order, and with more channels than a vector has."""
    numbers = rv.jet(torch.zeros(1, 1), 6, names="x").numbers
    torch.manual_seed(0)
    check(Case(rv.DenseMachine((5, 19), activation, dtype=dtype)), numbers)


def test_without_the_extension_numbers_are_swept_step_by_step(monkeypatch):
    net, x = rv.Network.dense(2, (4,), 1, dtype=torch.float64), torch.rand(3, 2, dtype=torch.float64)
    expected = torch.autograd.grad(rv.laplacian(net, x).sum(), [*net.parameters()])
    monkeypatch.setattr(native, "extension", None)
    actual = torch.autograd.grad(rv.laplacian(net, x).sum(), [*net.parameters()])
    assert_same(dict(enumerate(actual)), dict(enumerate(expected)))
