"""What functions of PyTorch make of jets is what nested differentiation says, in shape, precision and value."""

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from nesting import along, assert_derivatives
from tolerance import assert_equal
from torch import Tensor, nn

import resolvent as rv
from resolvent.structure.activation import ACTIVATIONS

f64: Any = dict(dtype=torch.float64)


def pointwise_program(p):
    t, x = p[..., :1], p[:, 1:]
    waves = torch.cat([torch.sin(3 * t), torch.cos(x) * t, (t - x).square(), p], -1)
    y = x * (1 - x) * waves / (2 + x**2) - 3 + (t + 1) ** 0.5 * torch.exp(-t) + 2**x + (1 + t) ** x
    y = y + torch.log(1 + t) / (x + 1) + torch.sqrt(1 + x * t) - 1 / (1 + t) + torch.tanh(waves)
    y = torch.stack([y, -y.flip(-1)], 1).sum(1) + y.mean(-1, keepdim=True) + waves @ torch.ones(5, 5).to(t)
    return torch.where(torch.tensor([True, False, True, True, False]), y, y * y).squeeze(0).reshape(-1)[2:]


def test_arithmetic_and_functions_read_as_they_do_for_tensors():
    points = torch.rand(3, 2, **f64) + 0.1
    assert_derivatives(pointwise_program, points, "t, x, tx, xxx, tttt", "tx")


def test_powers_by_tensors_and_lists_along_an_axis_read_as_for_tensors():
    """Of a negative base, too, and by each way to name the axis."""
    exponents = torch.tensor([2.0, 3.0], **f64)
    points = torch.tensor([[-0.7, 0.4], [1.2, -2.0], [0.3, -0.1]], **f64)
    for f in (
        lambda p: p**exponents,
        lambda p: p ** torch.tensor(3),
        lambda p: (p[:, :1] + 3) ** (exponents / 2),
        lambda p: torch.cat([p, p * p], axis=1),  # pyright: ignore  # PyTorch takes NumPy's name, too
        lambda p: torch.stack([p, p * p], dim=1),
    ):
        assert_derivatives(f, points, "t, xx, ttx", "tx")


def test_a_single_point_reads_as_one_of_many():
    def f(p):
        t, x = p.unbind(-1)
        return 3 * torch.sin(2 * x) - t * (1 - x**2) / (2 + t)

    points = torch.rand(3, 2, **f64)
    together = rv.derivatives(f, points, "1, tx, xx", names="tx")
    alone = [rv.derivatives(f, point, "1, tx, xx", names="tx") for point in points]
    assert_equal(together, [torch.stack(column) for column in zip(*alone, strict=True)])


def rows(*entries: Any) -> Tensor:
    return torch.tensor(entries, **f64)


FUNCTIONS: dict[str, Any] = {
    "padded with three": lambda p: F.pad(p * p, (1, 2), value=3.0),
    "padded around": lambda p: F.pad((p * p)[:, None], (1, 1), mode="circular"),
    "a layer that pads": lambda p: nn.ConstantPad1d(1, 2.5)(p * p),
    "differences": lambda p: (p**3).diff(dim=0),
    "a condition of more axes": lambda p: torch.where(torch.eye(3, 2) > 0, (p * p)[0], 1.0),
    "a condition and a number": lambda p: torch.where(p > 0.5, p * p, 2.0),
    "two lists": lambda p: (p * p)[(0, 2), (1, 0)],
    "lists around a slice": lambda p: (p[:, None] * rows([1.0, 2.0], [3.0, 4.0]))[(0, 1), :, (1, 0)],
    "an array and a slice": lambda p: (p * p)[np.array([2, 0]), 1:],
    "divided by an integer tensor": lambda p: p * p / torch.tensor(3),
    "divided by zero": lambda p: p / 0,
    "times a number of lower precision": lambda p: p * torch.tensor(2.0),
    "on either side": lambda p: rows([1.0, 2.0, 3.0]) @ (p * p) @ rows([1.0], [2.0]),
    "powers of zero and of others": lambda p: torch.tensor([0.0, 2.0], **f64) ** p,
    "no points": lambda p: p[:0] * (p * p)[:0, :1] + torch.ones(2, 0, 2),
    "in place": lambda p: F.relu(q := p - 0.5, inplace=True) + q,
    "with an argument": lambda p: F.leaky_relu(p - 0.5, 0.2) + F.softplus(p, beta=2) + F.elu(p - 0.5, alpha=2.0),
    "between bounds": lambda p: (p * p).clamp(0.1, 0.6) + p.clamp(max=0.5),
    "averages": lambda p: F.avg_pool1d((p * p)[:, None], 2, 1, 1),
    "sums and triangles": lambda p: (p * p).cumsum(0).tril() + (p * p).roll(1, 0) + p.flip(0) ** 2,
    "gathered": lambda p: (p * p).gather(1, torch.tensor([[0], [1], [0]])) + (p * p).index_select(1, torch.tensor([1])),
    "repeated": lambda p: torch.cat([(p * p).repeat(2, 1), (p * p).tile(2, 1), (p * p).expand(1, 3, 2)[0]]),
    "in parts": lambda p: torch.cat(
        [*(p * p).chunk(2, 1), *torch.split(p**3, 1, dim=1), *p.unbind(1)[0].unsqueeze(0)[:, :, None]], 1
    ),
    "products": lambda p: (p @ (p * p).t()) @ p + torch.outer(p[:, 0], p[:2, 1]) @ p[:2],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_with_a_rule_reads_as_for_tensors(name):
    """Against forward mode nested in forward mode, in shape, precision and value."""
    points = rows([0.1, 0.9], [0.8, 0.3], [0.6, 0.2])
    jets = FUNCTIONS[name](rv.jet(points, "t, xx, tx", names="tx"))
    for letters in ("", "t", "xx", "tx"):

        def derivative(f, direction):
            return lambda p: torch.func.jvp(f, (p,), (direction,))[1]

        expected = FUNCTIONS[name]
        for direction in along(points, letters, "tx"):
            expected = derivative(expected, direction)
        expected = expected(points)
        assert jets[letters].dtype == expected.dtype
        assert_equal(torch.nan_to_num(jets[letters]), torch.nan_to_num(expected))


def test_jets_of_lower_precision_are_multiplied_and_copied():
    p = rv.jet(torch.rand(3, 2), "xx", names="tx")
    assert (p * p.double())["xx"].dtype == torch.float64
    two: Any = torch.tensor(2.0, **f64)
    assert (two * p).dtype == torch.float32
    z = rv.Network.dense(2, (3,), 1)(p)
    with torch.autocast("cpu", torch.bfloat16):
        assert (rv.Network.dense(2, (3,), 1)(p) * p).dtype == torch.float32
    assert torch.equal(copy.deepcopy(z.detach())["xx"], z["xx"])


POINTWISE = [
    "tan sinh cosh atan asinh erf expm1 log1p exp2 rsqrt reciprocal square abs sigmoid relu",
    "F.celu F.hardtanh F.logsigmoid F.mish F.softplus F.gelu F.silu F.elu F.selu F.leaky_relu F.softsign",
]


@pytest.mark.parametrize("name", " ".join(POINTWISE).split())
def test_a_pointwise_function_is_its_series(name):
    function = getattr(F, name[2:]) if name.startswith("F.") else getattr(torch, name)
    assert_derivatives(lambda p: function(0.7 * p[:, 0]), torch.rand(4, 1, **f64) + 0.2, "x, xx, xxx", "x")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_series_of_every_activation_is_that_of_its_slope_differentiated(name):
    """To the fifth order, on both sides of where PyTorch changes the formula; and one's own function is its own."""
    sigma = ACTIVATIONS[name]
    a = torch.tensor([-21.0, -9.9, -3.0, -0.7, -1e-3, 2e-3, 0.4, 1.9, 9.9, 15.0, 20.5], **f64)
    expected, derivative, factorial = [sigma.function(a)], sigma.slope, 1
    for j in range(1, 6):
        factorial *= j
        expected.append(derivative(a) / factorial)
        derivative = rv.structure.series.slope_of(derivative)
    assert_equal(sigma.series(a, 5), expected)
    own = rv.structure.activation.as_activation(lambda y: sigma.function(y))
    for order in range(3):
        for actual, e in zip(own.series(a, order), expected[: order + 1], strict=True):
            assert (actual - e).abs().max() < 1e-9
        assert len(sigma.series(a, order)) == order + 1


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_derivative_of_each_coefficient_of_a_series_is_the_next_one(name):
    """As autograd sees it, so that slopes over numbers are differentiable to any order."""
    a = torch.tensor([-0.7, 0.3, 1.1], **f64, requires_grad=True)
    series = ACTIVATIONS[name].series(a, 5)
    for j, (coefficient, following) in enumerate(pairwise(series)):
        if coefficient.requires_grad:
            assert_equal(torch.autograd.grad(coefficient.sum(), a, retain_graph=True)[0], (j + 1) * following.detach())
        else:
            assert not following.count_nonzero()
