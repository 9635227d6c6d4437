"""The native sweep gives what the sweep gives step by step in PyTorch: every output and every gradient."""

from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest
import torch
from cases import SERVED, Case, cases, outputs_and_gradients, randomize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tolerance import TOLERANCE, assert_same
from torch import Tensor

import resolvent as rv
from resolvent.executors import native as _native
from resolvent.pytorch import memory
from resolvent.structure.activation import ACTIVATIONS
from resolvent.structure.sigma import SLOPE_AT, ZERO, Sigma
from resolvent.sweep.steps import steps

pytestmark = pytest.mark.usefixtures("uninitialized_memory_is_nan")
WIDTHS = (1, 2, 3, 7, 8, 13, 17, 33)  # around the widths of vectors, where a tail is left over


def extensions():
    for level in ("_v4", "_v3", "_v1"):
        try:
            extension = import_module(f"resolvent.executors.native.{level}")
        except ImportError:
            continue
        extension.connect(*memory())
        yield extension


@pytest.fixture(params=list(extensions()) or [None], ids=lambda m: getattr(m, "__name__", "none"), scope="module")
def native(request):
    if request.param is None:
        pytest.skip("the extension was not built")
    before = _native.extension
    _native.extension = request.param
    yield request.param
    _native.extension = before


def step_by_step(function, *args):
    """What the plain sweep gives."""
    extension, _native.extension = _native.extension, None
    try:
        return function(*args)
    finally:
        _native.extension = extension


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=cases(kinds=SERVED, widths=WIDTHS), shifted=st.booleans())
def test_native_sweep(native, dtype, case: Case, shifted):
    machine = case.machine.to(dtype)
    with torch.no_grad():
        machine.weight.div_(machine.partition.total**0.5)
    y0, z0, v0, u0 = (x.to(dtype) for x in case.points(4))
    assert machine.executor == "native"
    arguments = (machine, y0, z0 if shifted else None, v0, u0)
    assert_same(outputs_and_gradients(*arguments), step_by_step(outputs_and_gradients, *arguments))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=cases(kinds=SERVED, widths=WIDTHS), data=st.data())
def test_one_native_call_adds_the_bias_and_extends_short_inputs(native, case: Case, data):
    machine, (y0, z0, u0, v0) = case.machine.requires_grad_(False), case.points(4)
    axis, ends = machine.operator.channel_axis, st.sampled_from(machine.partition.ends)
    y0, z0 = (x.narrow(axis, 0, data.draw(ends)) for x in (y0, z0))

    def run():
        y, z = machine.solve(y0, z0)
        dy, dz = machine.tangent((y, z)).solve(y0, z0)
        u, v = machine.dual(y, value=machine.activation(y)).solve(u0, v0)
        return dict(y=y, z=z, dy=dy, dz=dz, u=u, v=v, only_y0=machine.solve(y0)[1], only_z0=machine.solve(None, z0)[1])

    assert_same(run(), step_by_step(run))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_native_activations_and_slopes(native, name, dtype):
    """Over the whole line, at kinks and where the exponentials saturate."""
    machine = randomize(rv.DenseMachine((1, 1), name, bias=False, dtype=dtype))
    near = torch.linspace(-12, 12, 4001, dtype=dtype)
    far = torch.tensor([0.0, 20.0, 20.01, 100.0, 800.0, 1e6], dtype=dtype)
    y0 = torch.cat([near, far, -far]).unsqueeze(1).expand(-1, 2).contiguous()
    arguments = (machine, y0, None, torch.ones_like(y0), torch.ones_like(y0))
    actual, expected = outputs_and_gradients(*arguments), step_by_step(outputs_and_gradients, *arguments)
    for key in ("y", "z", "u", "v", "dy", "dz"):
        torch.testing.assert_close(actual[key], expected[key], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=cases(kinds=("recurrent",), widths=WIDTHS), data=st.data())
def test_native_sweep_with_lengths_and_history(native, case: Case, data):
    case.batch = (3,)
    steps = case.extent[0]
    y0, z0, v0, u0 = case.points(4)
    lengths = data.draw(st.lists(st.integers(0, steps), min_size=3, max_size=3))
    history = torch.randn(3, data.draw(st.integers(0, 4)), y0.shape[-1], dtype=torch.float64)

    def run():
        return outputs_and_gradients(case.machine, y0, z0, v0, u0, lengths=lengths, history=history)

    assert_same(run(), step_by_step(run))


@pytest.mark.parametrize("connections", ["all", "sequential"])
@pytest.mark.parametrize("time_block", [1, 3, 8])
def test_many_lags_give_the_same_in_chunks_and_natively(native, time_block, connections):
    """Step by step they are products over chunks of steps, also where each member of an ensemble has its weight."""
    machine = rv.RecurrentMachine((2, 1), lags=19, time_block=time_block, connections=connections, dtype=torch.float64)
    points = [torch.randn(2, 27, 3, dtype=torch.float64) for _ in range(4)]
    with torch.no_grad():
        randomize(machine).weight.div_(10)
    arguments = (machine, *points)
    assert_same(outputs_and_gradients(*arguments), step_by_step(outputs_and_gradients, *arguments))
    members = torch.stack([machine.weight.detach(), -machine.weight.detach()])
    each = torch.func.vmap(lambda W: torch.func.functional_call(machine, dict(weight=W), points[0]))
    assert_same(dict(z=each(members)[0]), dict(z=machine(points[0])))


def test_many_threads_give_what_one_gives(native):
    threads = torch.get_num_threads()
    for machine, shape in (
        (rv.DenseMachine((64,) * 4, dtype=torch.float64), (301, 256)),
        (rv.ConvMachine((16,) * 4, kernel_size=(3, 3), dtype=torch.float64), (5, 64, 13, 9)),
        (rv.RecurrentMachine((16,) * 4, lags=3, time_block=2, dtype=torch.float64), (7, 21, 64)),
    ):
        points = [torch.randn(shape, dtype=torch.float64) for _ in range(4)]
        try:
            torch.set_num_threads(3)
            actual = outputs_and_gradients(machine, *points)
            torch.set_num_threads(1)
            assert_same(actual, outputs_and_gradients(machine, *points))
            assert_same(actual, step_by_step(outputs_and_gradients, machine, *points))
        finally:
            torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("channels", "kernel", "padding"),
    [
        (81, (7,), ((1, 5),)),
        (110, (3, 1), "same"),
        (110, (3, 2), ((2, 0), (0, 1))),
        (75, (2, 3), ((1, 0), (0, 2))),
        (53, (2, 2, 3), ((0, 1), (1, 0), (2, 0))),
    ],
)
def test_convolutions_whose_weight_exceeds_the_cache_give_the_same(native, channels, kernel, padding):
    sizes = (channels - 33, 17, 16)
    machine = rv.ConvMachine(sizes, kernel_size=kernel, padding=padding, dtype=torch.float64)
    assert machine.weight.nbytes > 2**18
    points = [torch.randn(3, channels, *(4, 3, 5)[: len(kernel)], dtype=torch.float64) for _ in range(4)]
    assert_same(outputs_and_gradients(machine, *points), step_by_step(outputs_and_gradients, machine, *points))


@pytest.mark.parametrize(
    "special",
    [torch.ops.aten._neg_view, lambda x: torch.ops.aten._efficientzerotensor(x.shape, dtype=x.dtype)],
    ids=["negated", "zeros"],
)
def test_tensors_that_are_not_stored_as_they_are(native, special):
    machine = rv.DenseMachine((3, 2), bias=False, dtype=torch.float64).requires_grad_(False)
    x = special(torch.randn(4, 5, dtype=torch.float64))
    stored = torch.zeros_like(x) + x
    for actual, expected in zip(machine.solve(x), machine.solve(stored), strict=True):
        torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(machine.weight_cotangent(x, stored), machine.weight_cotangent(stored, stored))


def test_weight_bias_and_point_of_other_types_and_shapes_are_refused(native):
    machine = rv.DenseMachine((2, 3))
    x = torch.randn(4, 2)
    with pytest.raises(ValueError, match=r"weight has shape \(2, 2\), the machine needs \(5, 5\)"):
        torch.func.functional_call(machine, {"weight": torch.zeros(2, 2)}, (x,))
    with pytest.raises(TypeError, match=r"bias is torch.float64, the machine is torch.float32"):
        torch.func.functional_call(machine, {"bias": torch.zeros(5, dtype=torch.float64)}, (x,))
    with pytest.raises(ValueError, match=r"bias has shape \(2,\), the machine needs \(5,\)"):
        torch.func.functional_call(machine, {"bias": torch.zeros(2)}, (x,))
    with pytest.raises(ValueError, match="bias is on meta, the machine is on cpu"):
        torch.func.functional_call(machine, {"bias": torch.zeros(5, device="meta")}, (x,))
    with pytest.raises(TypeError, match=r"y0 is torch.sparse_coo, the machine needs torch.strided"):
        machine.solve(x.to_sparse())
    dual = machine.dual(machine.solve(x)[0].detach())
    with pytest.raises(TypeError, match=r"y is torch.float32, the machine is torch.float64"):
        rv.DenseMachine((2, 3), dtype=torch.float64).dual(dual.y).endofunction(torch.zeros(2, 4, 5).double().unbind())
    machine.double()
    with pytest.raises(TypeError, match=r"y is torch.float32, the machine is torch.float64"):
        dual.solve(torch.randn(4, 5, dtype=torch.float64))


@pytest.mark.unchecked  # which would refuse them first
def test_what_is_no_plain_tensor_is_refused_as_ever(native):
    machine = rv.DenseMachine((2, 3)).requires_grad_(False)
    x: Any = torch.randn(4, 5)
    no_tensors: Any = None, [1], 1.0
    y, z = machine.solve(x)
    for call, message in (
        (lambda: machine.weight_cotangent(x, no_tensors[0]), "z must be a tensor, got NoneType"),
        (lambda: machine.weight_cotangent(x, no_tensors[1]), "z must be a tensor, got list"),
        (lambda: machine.solve(x, no_tensors[1]), "z0 must be a tensor, got list"),
        (lambda: machine.dual(y).solve(x, no_tensors[2]), "v0 must be a tensor, got float"),
        (lambda: machine.weight_cotangent(x.double(), x.double()), "v is torch.float64, the machine is torch.float32"),
        (lambda: machine.dual(y, value=z.double()).solve(x), "value is torch.float64, the machine is torch.float32"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(ValueError, match="v is on cpu, the machine is on meta"):
        rv.DenseMachine((2, 3), device="meta").weight_cotangent(x, x)
    dual = machine.dual(y, value=z)
    with torch.autocast("cpu", torch.bfloat16):
        results = machine.weight_cotangent(x, x), *machine.solve(x), *dual.solve(x)
        assert {result.dtype for result in results} == {torch.bfloat16}
    low = deepcopy(machine).bfloat16().dual(y.bfloat16(), value=z.bfloat16())  # the point, too, is cast
    assert torch.equal(results[-1], low.solve(x.bfloat16())[1])
    assert dual.solve(x)[0].dtype == torch.float32


@pytest.mark.filterwarnings("ignore")  # of tracing: it is deprecated, and fixes shapes
def test_a_tracer_sees_the_steps(native):
    machine = rv.DenseMachine((2, 3))
    x, other = torch.randn(4, 2), torch.randn(4, 2)
    for trained in (True, False):
        traced: Any = torch.jit.trace(machine.requires_grad_(trained), x, check_trace=False)
        torch.testing.assert_close(traced(other), machine(other))


@pytest.mark.parametrize("deterministic", [True, False])  # which take their memory from different places
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_as_torch_empty_makes_them(native, deterministic, mode, dtype):
    torch.use_deterministic_algorithms(deterministic)
    machine = rv.ConvMachine((2, 3), kernel_size=3, dtype=dtype)
    with mode():
        for batch in (4, 0):
            x = torch.randn(batch, 5, 7, dtype=dtype)
            y, z = machine.solve(x)
            Q = machine.weight_cotangent(x, x)
            for result, shape in ((y, x.shape), (z, x.shape), (Q, machine.weight.shape)):
                expected = torch.empty(shape, dtype=dtype)
                for fact in (Tensor.size, Tensor.stride, Tensor.type, Tensor.is_inference, Tensor.storage_offset):
                    assert fact(result) == fact(expected)
                assert result.untyped_storage().resizable()
                result.resize_(10, 10)


def test_a_parametrized_weight_is_computed_once_for_each_call(native):
    calls = []

    class Counted(torch.nn.Module):
        def forward(self, weight):
            calls.append(weight)
            return weight * 1

    machine = rv.DenseMachine((2, 3))
    torch.nn.utils.parametrize.register_parametrization(machine, "weight", Counted())
    calls.clear()
    machine(torch.randn(4, 2))
    assert len(calls) == 1


@pytest.mark.parametrize("derivative", ["tangent", "dual"])
def test_autograd_differentiates_a_derivative(native, derivative):
    """By the point it is taken at, by W, and by what it is given, together and alone."""
    machine = randomize(rv.DenseMachine((2, 3, 1), "tanh", dtype=torch.float64))
    values = [machine.weight, *(torch.randn(2, 6, dtype=torch.float64) for _ in range(3))]

    def function(_, y, first, second):
        return getattr(machine, derivative)(y).solve(first, second)

    for wanted in ([0, 1, 2, 3], [0], [1], [2]):
        for i, value in enumerate(values):
            value.requires_grad_(i in wanted)
        assert torch.autograd.gradcheck(function, values)


def test_inputs_of_any_strides(native):
    machine = rv.DenseMachine((3, 4, 2), dtype=torch.float64)
    y0, z0, v0, u0 = (torch.randn(9, 5, dtype=torch.float64).mT for _ in range(4))
    arguments = (machine, y0, z0, v0, u0)
    assert_same(outputs_and_gradients(*arguments), step_by_step(outputs_and_gradients, *arguments))


def test_what_no_kernel_serves_runs_step_by_step(monkeypatch):
    assert rv.DenseMachine((2, 3), lambda y: y * y).executor == "torch"
    assert rv.DenseMachine((2, 3), dtype=torch.bfloat16).executor == "torch"
    assert rv.DenseMachine((2, 3), device="meta").executor == "torch"
    machine = rv.DenseMachine((2, 3))
    x = torch.randn(4, 2)
    z = machine(x)
    monkeypatch.setattr(_native, "extension", None)
    assert machine.executor == "torch"
    torch.testing.assert_close(machine(x), z)


def test_an_earlier_sweep_leaves_nothing_behind(native):
    """Of memory that is kept, only what this machine writes counts: W's copy, and what Q of convolutions needs."""
    with torch.no_grad():
        for poisoned in (rv.DenseMachine((1,) * 9), rv.RecurrentMachine((3, 3), lags=2)):
            poisoned.weight.fill_(torch.nan)
            poisoned(torch.ones(2, 3, poisoned.partition.total))
        machine, x = rv.DenseMachine((2, 3, 4), "tanh", connections="sequential"), torch.randn(5, 2)
        torch.testing.assert_close(machine(x), step_by_step(machine, x))
        for size in (9, 2):
            machine = rv.ConvMachine((size, size), kernel_size=3)
            v, z = torch.randn(2, 3, 2 * size, 2 * size)
            machine.weight_cotangent(v * torch.nan, z * torch.nan)
            assert_same(dict(Q=machine.weight_cotangent(v, z)), dict(Q=step_by_step(machine.weight_cotangent, v, z)))


def test_memory_too_large_to_be_kept_gives_the_same(native):
    machine = rv.ConvMachine((2, 2), kernel_size=3, dtype=torch.float64)
    v, z = torch.randn(2, 11, 4, 100_000, dtype=torch.float64)
    assert_same(dict(Q=machine.weight_cotangent(v, z)), dict(Q=step_by_step(machine.weight_cotangent, v, z)))


@pytest.mark.parametrize("activation", ["tanh", "sigmoid", "relu", "gelu"])
def test_a_known_value_gives_the_slope(native, activation):
    machine, y0 = rv.DenseMachine((3, 9, 2), activation), torch.randn(5, 14)
    with torch.no_grad():
        y, z = machine.solve(y0)
        torch.testing.assert_close(machine.dual(y, value=z).solve(y0), step_by_step(machine.dual(y).solve, y0))


def test_step_by_step_z_is_zero_where_neither_z0_nor_sigma_is():
    machine = rv.RecurrentMachine((2, 3), "tanh", lags=2).requires_grad_(False)
    u0 = torch.randn(4, 5, 5)
    slope = Sigma(SLOPE_AT, u0, history=2)
    _, v = steps(machine.system.dual, slope, machine.weight, None, u0, None)
    assert (v[:, :2] == 0).all()
    assert v[:, 2:].isfinite().all()
    _, v = steps(machine.system, ZERO, machine.weight, None, u0, None)
    assert (v == 0).all()


def test_a_known_value_is_not_differentiated_step_by_step():
    machine = rv.DenseMachine((2, 3), "tanh", dtype=torch.bfloat16).requires_grad_(False)
    y, z = machine.solve(torch.randn(4, 5).bfloat16())
    _, v = machine.dual(y, value=z.requires_grad_()).solve(torch.ones_like(y))
    assert machine.executor == "torch"
    assert not v.requires_grad
