"""Derivatives by jets are those of nested differentiation, through machines, networks, sums and layers of PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cases import Case, cases, randomize
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nesting import along, assert_derivatives, nested
from tolerance import TOLERANCE, assert_equal
from torch import Tensor, nn

import resolvent as rv
from resolvent.structure.jet import Jet

f64: Any = dict(dtype=torch.float64)


class Plain(nn.Module):
    """Layers of PyTorch, in a network that a user would write."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3, bias=False), nn.SiLU())
        self.both, self.last = nn.Bilinear(3, 2, 5), nn.Linear(5, 1)

    def forward(self, p):
        z = self.first(p)
        return self.last(torch.sigmoid(self.both(z, p) + F.pad(z, (0, 2)))) * z[..., :1]


NETWORKS = {
    "plain layers": lambda: Plain().double(),
    "a network": lambda: rv.Network.dense(2, (5, 4), 1, **f64),
    "a machine": lambda: rv.DenseMachine((2, 3, 1), ["sin", "gelu", "tanh"], **f64),
    "a machine inside of layers": lambda: nn.Sequential(
        nn.Linear(2, 3), rv.DenseMachine((3, 4), "silu", dtype=torch.float64), nn.Tanh(), nn.Linear(7, 1)
    ).double(),
    "one's own activation": lambda: rv.DenseMachine((2, 3, 1), lambda y: y * torch.sin(y), **f64),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("text", ["t, x, xx", "xxx", "tttt, ttxx, xxxx"])
def test_derivatives_are_those_of_nested_autograd(name, text):
    net = NETWORKS[name]()
    assert_derivatives(net, torch.rand(6, 2, **f64) - 0.5, text, "tx")


@pytest.mark.parametrize("name", NETWORKS)
def test_one_backward_pass_gives_what_differentiating_nested_derivatives_does(name):
    net, points = NETWORKS[name](), torch.rand(6, 2, **f64) - 0.5

    def loss(t, xx, value):
        return (t - 0.3 * xx + value.sin()).square().sum()

    u = net(rv.jet(points, "t, xx", names="tx"))
    actual = torch.autograd.grad(loss(u["t"], u["xx"], u[""]), [*net.parameters()], create_graph=True)
    t, xx = (nested(net, points, *along(points, letters, "tx")) for letters in ("t", "xx"))
    expected = torch.autograd.grad(loss(t, xx, net(points)), [*net.parameters()], create_graph=True)
    assert_equal([*actual], [*expected])
    seconds = (torch.cat([g.sin().flatten() for g in both]).sum() for both in (actual, expected))
    again = [torch.autograd.grad(second, [*net.parameters()]) for second in seconds]
    for a, e in zip(*again, strict=True):
        assert (a - e).abs().max() <= 1e-10 * e.abs().max().clamp(min=1)


@settings(max_examples=25)
@given(
    cases(activations=("tanh", "sin", "sigmoid", "gelu", "silu"), widths=(1, 2)), st.sampled_from(["a", "aa", "aab"])
)
def test_a_machine_over_jets_of_its_signal_is_the_naive_derivative_along_directions(case: Case, letters):
    """Derivatives by all entries of the input: of pixels, of a signal's values, of inputs through time."""
    machine, (y0, a, b) = case.machine, case.points(3)
    directions = dict(a=a, b=b)
    z = machine(rv.jet(y0, letters, names="ab", directions=directions))
    expected = nested(machine, y0, *(directions[letter] for letter in letters))
    assert z[letters].shape == expected.shape
    if expected.numel():
        assert (z[letters] - expected).abs().max() <= 1e-10 * expected.abs().max().clamp(min=1)


@settings(max_examples=20)
@given(cases(activations=("tanh", "silu"), widths=(1, 2)))
def test_a_machine_over_jets_is_the_sum_of_its_layers_over_jets(case: Case):
    """Each layer of which is PyTorch's own arithmetic."""
    machine, (y0, a, b) = case.machine, case.points(3)
    assume(y0.numel())
    jets = rv.jet(y0, "aa, ab", names="ab", directions=[a, b])
    recurrent = isinstance(machine, rv.RecurrentMachine)
    h = machine.as_sum(*case.extent if recurrent else ())(machine.as_point(jets))
    for name, part in machine.as_point(machine(jets)).items():  # of y, which has the bias added
        bias = machine.as_point(torch.zeros_like(y0))[name]
        assert_equal(h["z" + name[1:]].coefficients, (part - bias).coefficients)


def test_a_recurrent_machine_over_jets_has_lengths_history_and_steps():
    machine = randomize(rv.RecurrentMachine((2, 3, 1), "tanh", lags=2, **f64))
    x, d = torch.randn(3, 5, 2, **f64), torch.randn(3, 5, 2, **f64)
    jets = rv.jet(x, "a, aa", names="a", directions=[d])
    lengths = torch.tensor([5, 0, 3])
    z = machine(jets, lengths=lengths)
    expected = (
        machine(x, lengths=lengths),
        *(nested(lambda x: machine(x, lengths=lengths), x, *[d] * order) for order in (1, 2)),
    )
    assert_equal((z[""], z["a"], z["aa"]), expected)
    whole, history = machine(jets), machine(jets[:, :2])
    _, rest = machine.solve(jets[:, 2:], history=history)
    joined: Any = torch.cat([history, rest], 1)
    assert_equal(joined.coefficients, whole.coefficients)
    z_t, state = None, machine.initial_state(3)
    for t in range(5):
        z_t, state = machine.step(jets[:, t], state)
    assert z_t is not None
    assert_equal(z_t.coefficients, whole[:, -1].coefficients)


def test_convolutional_networks_of_pytorch_take_jets():
    conv = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 2, stride=2), nn.Sigmoid()).double()
    x, a = torch.randn(2, 2, 1, 4, 4, **f64)
    u = conv(rv.jet(x, "aa", names="a", directions=[a]))
    assert_equal(u["aa"], nested(conv, x, a, a))
    one = nn.Conv1d(2, 3, 3, padding="same").double()
    assert_equal(one(rv.jet(x[:, 0, :2], "aa", names="a", directions=[a[:, 0, :2]]))["aa"], torch.zeros(2, 3, 4, **f64))


def test_a_sum_of_layers_takes_jets():
    f = rv.Layer(nn.Linear(2, 3), reads="x", writes="y") + rv.Layer(torch.tanh, reads="y", writes="z")
    f = (f + rv.Layer(nn.Bilinear(3, 2, 1), reads=("z", "x"), writes="out")).double()
    points = torch.rand(4, 2, **f64)
    assert_derivatives(lambda p: f({"x": p})["out"], points, "t, tx, xxx", "tx")


def test_laplacian_and_biharmonic_are_sums_of_derivatives():
    net, points = rv.Network.dense(3, (5, 5), 2, **f64), torch.rand(4, 3, **f64)
    second = torch.func.vmap(torch.func.hessian(net))(points)
    assert_equal(rv.laplacian(net, points), second.diagonal(dim1=-2, dim2=-1).sum(-1))
    names = "xyz"
    pairs = sum(rv.derivatives(net, points, 2 * a + 2 * b, names=names)[0] for a in names for b in names)
    assert_equal(rv.biharmonic(net, points), pairs)
    texts = rv.derivatives(net, points, "1, xx + yy + zz, xy - 2 z", names=names)
    assert_equal(texts[:2], (net(points), rv.laplacian(net, points)))


def test_the_stochastic_laplacian_is_exact_on_average_and_where_the_hessian_is_diagonal():
    points = torch.rand(4, 20, **f64)
    exact = rv.laplacian(lambda p: p.sin().sum(-1), points)
    assert_equal(rv.laplacian(lambda p: p.sin().sum(-1), points, samples=1), exact)
    generator = torch.Generator().manual_seed(0)
    f = lambda p: (p.sum(-1) / 5).sin()  # noqa: E731  # as a user writes it
    estimate = rv.laplacian(f, points.expand(4000, 4, 20), samples=4, generator=generator).mean(0)
    exact = rv.laplacian(f, points)
    assert (estimate - exact).abs().max() < 0.05 * exact.abs().max()
    assert not torch.equal(rv.laplacian(f, points, samples=4), exact)


@pytest.mark.unchecked
def test_derivatives_in_the_loss_compile_to_one_graph_with_one_backward_pass():
    """Which nested autograd cannot: `torch.compile` has no double backward."""
    net, points = rv.Network.dense(2, (5, 4), 1, **f64), torch.rand(6, 2, **f64)

    def loss(points: Tensor) -> Tensor:
        p = rv.jet(points, "t, x, xx", names="tx")
        u = p[:, 1:] * (1 - p[:, 1:]) * net(p)
        return (u["t"] + u[""] * u["x"] - 0.01 * u["xx"] + rv.laplacian(net, points)).square().mean()

    expected = torch.autograd.grad(loss(points), [*net.parameters()])
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert_equal(torch.autograd.grad(compiled(points), [*net.parameters()]), expected)
    assert_equal(compiled(points[:4]), loss(points[:4]))
    laplacian = torch.compile(lambda f, points: rv.laplacian(f, points), fullgraph=True, backend="aot_eager")
    for dimension in (2, 3, 5):  # from the second on, the compiler has a symbol for it
        other, points = rv.Network.dense(dimension, (4,), 1, **f64), torch.rand(3, dimension, **f64)
        assert_equal(laplacian(other, points), rv.laplacian(other, points))
    torch.compiler.reset()


@pytest.mark.unchecked
def test_torch_func_transforms_what_jets_are_in():
    net, points = rv.Network.dense(2, (5, 4), 1, **f64), torch.rand(6, 2, **f64)
    parameters = dict(net.named_parameters())

    def residual(parameters, point: Tensor) -> Tensor:
        u = torch.func.functional_call(net, parameters, (rv.jet(point, "t, xx", names="tx"),))
        return (u["t"] - u["xx"]).squeeze()

    each = torch.func.vmap(residual, (None, 0))(parameters, points)
    assert_equal(each, residual(parameters, points))
    jacobian = torch.func.vmap(torch.func.grad(residual), (None, 0))(parameters, points)
    for i, row in enumerate(points):
        expected = torch.autograd.grad(residual(parameters, row), [*parameters.values()])
        assert_equal([g[i] for g in jacobian.values()], [*expected])
    tangents = {name: torch.randn_like(p) for name, p in parameters.items()}
    forward = torch.func.jvp(lambda p: residual(p, points), (parameters,), (tangents,))[1]
    pulled = torch.func.vjp(lambda p: residual(p, points), parameters)[1](torch.ones_like(forward))[0]
    assert_equal(forward.sum(), sum((pulled[n] * t).sum() for n, t in tangents.items()))
    several = {name: torch.stack([p.detach(), p.detach() / 2]) for name, p in parameters.items()}
    ensemble = torch.func.vmap(residual, (0, None))(several, points)
    assert_equal(ensemble[1], residual({name: p / 2 for name, p in parameters.items()}, points))


def test_single_precision_and_autocast_keep_to_double():
    net, points = rv.Network.dense(2, (8, 8), 1), torch.rand(20, 2)
    double = rv.Network.dense(2, (8, 8), 1, **f64)
    double.load_state_dict(net.state_dict())
    exact = rv.derivatives(double, points.double(), "1, xx + yy, xxx", names="xy")
    single = rv.derivatives(net, points, "1, xx + yy, xxx", names="xy")
    with torch.autocast("cpu", torch.bfloat16):
        half = rv.derivatives(net, points, "1, xx + yy, xxx", names="xy")
    for e, s, h in zip(exact, single, half, strict=True):
        assert s.dtype == torch.float32
        assert (s - e).abs().max() <= 10 * TOLERANCE[torch.float32] * e.abs().max().clamp(min=1)
        assert h.dtype == torch.bfloat16
        assert (h - e).norm() <= 0.1 * e.norm() + 0.05


def test_tangent_dual_and_weight_cotangent_take_jets():
    machine = randomize(rv.DenseMachine((2, 3, 2), "tanh", **f64))
    points = torch.rand(4, 2, **f64)
    y, z = machine.solve(rv.jet(points, "xx", names="tx"))
    dz = machine.tangent(y).solve(rv.jet(points, "xx", names="tx"))[1]
    assert isinstance(dz, Jet)
    v0 = torch.randn(4, 7, **f64)
    _, v = machine.dual(y, value=z).solve(None, v0)
    Q = machine.weight_cotangent(v, z)
    with torch.enable_grad():
        u = machine.solve(rv.jet(points, "xx", names="tx"))[0]
        expected = torch.autograd.grad(u[""], machine.weight, v0)[0]
    assert_equal(Q.detach(), expected)


def test_a_jet_tells_what_it_is():
    p = rv.jet(torch.rand(3, 2, **f64), "xx", names="tx")
    assert repr(p).startswith("Jet of shape (3, 2) over 3 numbers, which know 1, x, xx, value=")
    assert len(p) == 3
    assert [q.shape for q in p] == [(2,)] * 3
    assert [q.shape for q in p.unbind(-1)] == [(3,)] * 2
    assert p.ndim == p.dim() == 2
    assert p.size(0) == 3
    assert p.dtype == torch.float64
    assert not p.detach().requires_grad
    assert (p[:, 0] > 2).dtype == torch.bool
