"""σ stands beside its slope, and the slope is the derivative, to every order."""

import math

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_equal
from torch import nn

import resolvent as rv
from resolvent.executors import native
from resolvent.structure.activation import ACTIVATIONS, MODULES, as_activation
from resolvent.structure.activations import activations_of
from resolvent.structure.partition import Partition

KINKED = ("relu", "leaky_relu", "elu", "selu")
SAMPLES = torch.cat([torch.linspace(-30, 30, 101), torch.linspace(-2, 2, 50)]).double()


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_slope_is_the_derivative(name):
    activation = ACTIVATIONS[name]
    y = torch.cat([SAMPLES, torch.zeros(1).double()]).requires_grad_()  # at kinks, the slope PyTorch's backward takes
    (expected,) = torch.autograd.grad(activation.function(y).sum(), y)
    assert_equal(activation.slope(y.detach()), expected)
    if activation.times_slope is not None:
        assert_equal(activation.times_slope(2 * y.detach(), activation.function(y.detach())), 2 * y.detach() * expected)


@pytest.mark.parametrize("name", [name for name in ACTIVATIONS if name not in ("identity", "relu", "leaky_relu")])
def test_the_slope_is_differentiable(name):
    activation = ACTIVATIONS[name]
    y = SAMPLES[SAMPLES != 0].requires_grad_()
    (first,) = torch.autograd.grad(activation.function(y).sum(), y, create_graph=True)
    (expected,) = torch.autograd.grad(first.sum(), y)
    (actual,) = torch.autograd.grad(activation.slope(y).sum(), y)
    assert_equal(actual, expected)


@pytest.mark.parametrize("custom", [lambda y: torch.sin(y) * y, nn.Mish(), F.logsigmoid, nn.Hardtanh(-0.3, 0.4)])
def test_the_slope_of_a_custom_activation_is_its_derivative(custom):
    y = SAMPLES.clone().requires_grad_()
    (expected,) = torch.autograd.grad(custom(y).sum(), y)
    assert_equal(as_activation(custom).slope(y.detach()), expected)


def test_an_activation_may_be_undefined_somewhere():
    assert as_activation(torch.sqrt).slope(torch.tensor(4.0)) == 0.25


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_slope_is_finite_in_float16(name):
    y = torch.tensor([-6e4, -1e3, -10, 10, 1e3, 6e4], dtype=torch.float16)
    assert ACTIVATIONS[name].slope(y).isfinite().all()


def test_a_known_function_is_recognised():
    assert as_activation(torch.tanh) is ACTIVATIONS["tanh"]
    assert as_activation(F.gelu) is ACTIVATIONS["gelu"]
    for function in (F.relu, F.tanh, F.sigmoid, F.softsign):
        assert as_activation(function) is ACTIVATIONS[function.__name__]


@pytest.mark.parametrize("module", [*(type_ for type_, _ in MODULES), lambda: nn.GELU("tanh")])
def test_a_module_that_is_a_known_activation_is_recognised(module):
    activation = as_activation(module())
    assert ACTIVATIONS[activation.name] is activation
    assert_equal(activation.function(SAMPLES), module()(SAMPLES))


def test_a_module_that_works_in_place_is_read_as_one_that_does_not():
    relu, elu = nn.ReLU(inplace=True), nn.ELU(0.5, inplace=True)
    assert as_activation(relu) is ACTIVATIONS["relu"]
    y = SAMPLES.clone()
    assert_equal(as_activation(elu).function(y), nn.ELU(0.5)(SAMPLES))
    assert torch.equal(y, SAMPLES)
    assert relu.inplace
    assert elu.inplace
    assert rv.Network.dense(2, (3, 3), 1, activation=relu).machine.executor == "native" or native.extension is None


@pytest.mark.parametrize(("name", "moment"), [("identity", 1), ("relu", 0.5), ("sin", (1 - math.exp(-2)) / 2)])
def test_the_second_moment_is_that_of_a_standard_normal(name, moment):
    assert ACTIVATIONS[name].second_moment() == pytest.approx(moment, rel=2e-3)


def test_every_block_has_its_own_activation():
    sigma = activations_of(["tanh", "tanh", "relu"], Partition((1, 2, 1)), channel_axis=-1, event_ndim=1)
    y = torch.randn(3, 4, dtype=torch.float64)
    assert_equal(sigma(y), torch.cat([torch.tanh(y[:, :3]), torch.relu(y[:, 3:])], 1))
    assert_equal(sigma.slope(y), torch.cat([1 - torch.tanh(y[:, :3]) ** 2, (y[:, 3:] > 0).double()], 1))
