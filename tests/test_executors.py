"""Fast executors give what the sweep gives step by step in PyTorch: every output and every gradient."""

from importlib import import_module
from typing import Any

import pytest
import torch
from cases import Case, cases, randomize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tolerance import TOLERANCE

import resolvent as rv
from resolvent import _native, _plan, _solve, _stages, _sweep
from resolvent._activation import ACTIVATIONS, Slope

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
_triton = pytest.importorskip("resolvent._triton")

WIDTHS = (1, 2, 3, 7, 8, 13, 17, 33)  # around the widths of vectors, where a tail is left over


def extensions():
    for level in ("_native_v4", "_native_v3", "_native_v1"):
        try:
            yield import_module(f"resolvent.{level}")
        except ImportError:
            continue


@pytest.fixture(params=list(extensions()) or [None], ids=lambda m: getattr(m, "__name__", "none"), scope="module")
def native(request):
    if request.param is None:
        pytest.skip("the extension was not built")
    before = _native.extension
    _native.extension = request.param
    yield request.param
    _native.extension = before


@pytest.fixture(autouse=True)
def uninitialized_memory_is_nan():
    torch.use_deterministic_algorithms(True)  # which fills what torch.empty returns with NaN
    yield
    torch.use_deterministic_algorithms(False)


def step_by_step(function, *args):
    """What the plain sweep gives."""
    extension, _native.extension = _native.extension, None
    try:
        return function(*args)
    finally:
        _native.extension = extension


def outputs_and_gradients(machine, y0, z0, v0, u0, **options):
    parameters = list(machine.parameters())
    points = [x.clone().requires_grad_() for x in (y0, z0) if x is not None]
    y, z = machine.solve(points[0], points[1] if len(points) == 2 else None, **options)
    gradients = torch.autograd.grad((y, z), [*points, *parameters], (v0, u0), allow_unused=True)
    with torch.no_grad():
        u, v = machine.dual(y).solve(u0, v0)
        dy, dz = machine.tangent(y).solve(u0, v0)
        Q = machine.weight_cotangent(v, z)
    return dict(y=y, z=z, u=u, v=v, dy=dy, dz=dz, Q=Q) | {f"gradient {i}": g for i, g in enumerate(gradients)}


def assert_same(actual: dict, expected: dict) -> None:
    for name, e in expected.items():
        a = actual[name]
        if e is None or not e.numel():
            assert (None if a is None else a.shape) == (None if e is None else e.shape), name
            continue
        assert a.isfinite().all(), name
        error = (a - e).abs().max() / e.abs().max().clamp(min=1)
        assert error <= TOLERANCE[e.dtype], (name, error)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=cases(widths=WIDTHS), shifted=st.booleans())
def test_native_sweep(native, dtype, case: Case, shifted):
    machine = case.machine.to(dtype)
    with torch.no_grad():
        machine.weight.div_(machine.partition.total**0.5)
    y0, z0, v0, u0 = (x.to(dtype) for x in case.points(4))
    assert machine.executor == "native"
    arguments = (machine, y0, z0 if shifted else None, v0, u0)
    assert_same(outputs_and_gradients(*arguments), step_by_step(outputs_and_gradients, *arguments))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(case=cases(widths=WIDTHS), data=st.data())
def test_one_native_call_adds_the_bias_and_extends_short_inputs(native, case: Case, data):
    machine, (y0, z0, u0, v0) = case.machine.requires_grad_(False), case.points(4)
    axis, channels = machine.operator.channel_axis, data.draw(st.integers(0, machine.partition.total))
    short = [x.narrow(axis, 0, channels) for x in (y0, u0)]

    def run():
        y, z = machine.solve(short[0], z0)
        u, v = machine.dual(y, z - z0).solve(short[1], v0)
        return dict(y=y, z=z, u=u, v=v, only_y0=machine(short[0]))

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
    with pytest.raises(TypeError, match=r"bias is torch.float64, the weight is torch.float32"):
        torch.func.functional_call(machine, {"bias": torch.zeros(5, dtype=torch.float64)}, (x,))
    dual = machine.dual(machine.solve(x)[0].detach())
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
        (lambda: machine.dual(y, z.double()).solve(x), "z is torch.float64, the machine is torch.float32"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
    with pytest.raises(ValueError, match="v is on cpu, the machine is on meta"):
        rv.DenseMachine((2, 3), device="meta").weight_cotangent(x, x)
    dual = machine.dual(y, z)
    with torch.autocast("cpu", torch.bfloat16):
        assert machine.weight_cotangent(x, x).dtype == machine.solve(x)[0].dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(TypeError, match=r"the machine is now torch.bfloat16"):
        dual.solve(x)


@pytest.mark.filterwarnings("ignore")  # of tracing: it is deprecated, and fixes shapes
def test_results_are_ordinary_tensors(native):
    """They can be resized, and a tracer sees how they came about."""
    machine = rv.DenseMachine((2, 3))
    x, other = torch.randn(4, 2), torch.randn(4, 2)
    for trained in (True, False):
        traced: Any = torch.jit.trace(machine.requires_grad_(trained), x, check_trace=False)
        torch.testing.assert_close(traced(other), machine(other))
    with torch.no_grad():
        for result in (*machine.solve(x), machine.weight_cotangent(torch.randn(4, 5), torch.randn(4, 5))):
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


@pytest.mark.unchecked  # run-time type checks would rewrite the kernel
class TestTriton:
    """The kernels against the plain sweep, for σ, for slopes in each of their forms, and for σ = 0."""

    @pytest.fixture(autouse=True)
    def schedules_of_their_own(self):
        """What a test changes of how a plan is made and scheduled is not to be seen by the next."""
        _plan.make_plan.cache_clear()
        yield
        _plan.make_plan.cache_clear()
        _stages.schedule_of.cache_clear()
        _stages.cover.cache_clear()
        _triton._launches.cache_clear()

    def check(self, machine, time_steps=None, history=0, lengths=None, batch=3):
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
        y, z = self.same(machine.operator, plan, sigma, machine.weight, y0, z0, inside)
        if not history:
            y, z = self.same(machine.operator, plan, sigma, machine.weight, y0, None, inside)
            short = y0.narrow(machine.operator.channel_axis, 0, n // 2)
            self.same(machine.operator, plan, sigma, machine.weight, short, z0, inside, machine.bias)
        for way in (plan, plan.dual):
            slopes = (Slope(sigma, y), Slope(sigma, y, sigma(y)), sigma.slope(y), None)
            for slope, (u, v) in zip(slopes, ((u0, v0), (None, v0), (u0, v0), (u0, v0)), strict=True):
                self.same(machine.operator, way, slope, machine.weight, u, v, inside)
            if not history:
                self.same(machine.operator, way, slopes[1], machine.weight, u0, None, inside)
        if not history:
            expected = torch.zeros_like(machine.weight)
            for rectangle in plan.rectangles:
                machine.operator.accumulate_cotangent(expected, v0, z, rectangle)
            assert_same(dict(Q=_triton.cotangent(machine.operator, plan, v0, z)), dict(Q=expected))

    def same(self, *arguments):
        expected = _sweep._step_by_step(*arguments)
        actual = _triton.sweep(*arguments)
        assert_same(dict(zip("yz", actual, strict=True)), dict(zip("yz", expected, strict=True)))
        return expected

    def test_wide_blocks(self):
        self.check(rv.DenseMachine((17, 33, 9), "tanh"))

    def test_blocks_wider_than_a_stage(self):
        machine = rv.DenseMachine((70, 3, 129), "tanh")
        self.check(machine)
        assert len(_stages.schedule_of(machine._plan_at(1, 0), machine.activation.codes).stages) == 2 + 1 + 3

    @pytest.mark.parametrize("sizes", [(3, 1, 2, 9), (16, 32, 16), (32, 32, 32)])
    def test_tiles_of_many_samples(self, sizes):
        """Of which the last machine fills all of its tiles."""
        self.check(rv.DenseMachine(sizes, "tanh"), batch=270)

    @pytest.mark.parametrize("case", ["dense", "conv", "recurrent"])
    @settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(data=st.data())
    def test_through_autograd(self, case, data, monkeypatch):
        """As a machine on a GPU calls the kernels, with windows and products between them."""
        monkeypatch.setattr(_stages, "_window", lambda *_: 6)
        drawn = data.draw(cases(kinds=(case,), widths=(1, 5), activations=("tanh",), axes=(1,)))
        machine = drawn.machine.to(DEVICE, torch.float32)
        points = [x.float().to(DEVICE) for x in drawn.points(4)]
        axis, channels = machine.operator.channel_axis, data.draw(st.integers(0, machine.partition.total))
        arguments = (machine, points[0].narrow(axis, 0, channels), *points[1:])
        with monkeypatch.context() as patch:
            for module in (_sweep, _solve):
                patch.setattr(module, "fast", lambda _: _triton)
            actual = outputs_and_gradients(*arguments)
            patch.setattr(_solve, "fast", lambda _: None)
            patch.setattr(_sweep, "fast", lambda _: None)
            expected = outputs_and_gradients(*arguments)
        assert_same(actual, expected)

    def test_without_the_extension_that_checks_tensors(self, monkeypatch):
        monkeypatch.setattr(_native, "extension", None)
        self.check(rv.DenseMachine((5, 9), "tanh"))
        machine = rv.DenseMachine((2, 1), bias=False, device=DEVICE).requires_grad_(False)
        x = torch.randn(3, 4, device=DEVICE)
        arguments = (machine.operator, machine._plan_at(1, 0), machine.activation, machine.weight)
        self.same(*arguments, x.mT[:, :3], None, None)  # neither contiguous nor aligned
        for y0, z0 in ((x, None), (x[:, :3].double(), None), (x[:, :3], x[:, :2]), (x[:, :3], x[:, :3].int())):
            assert _triton.sweep(*arguments, y0, z0, None) is None

    def test_samples_whose_places_need_64_bits(self, monkeypatch):
        monkeypatch.setattr(_triton, "VAST", 1)
        self.check(rv.RecurrentMachine((2, 3), "tanh", lags=2), 3, batch=270)

    @pytest.mark.parametrize("case", ["dense", "conv", "recurrent"])
    @settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(data=st.data())
    def test_any_machine_however_it_is_cut(self, case, data, monkeypatch):
        """With windows, tiles and pasts so small that each machine meets them."""
        for name, value in (("_window", lambda *_: 6), ("NARROW", 2), ("TILE", 4), ("PULLED", 8), ("COVERED", 8)):
            monkeypatch.setattr(_stages, name, value)
        monkeypatch.setattr(_plan, "CHUNK", 2)
        drawn = data.draw(cases(kinds=(case,), widths=(1, 2, 5), activations=("tanh", "relu"), axes=(1,)))
        self.check(drawn.machine, *drawn.extent)

    def test_products_onto_parts_of_which_some_are_fresh(self, monkeypatch):
        """The first half feeds block 6 alone, and then blocks 4 and 5 feed 6 and 7 in one product."""
        monkeypatch.setattr(_stages, "_window", lambda *_: 2)
        connections = torch.zeros(8, 8, dtype=torch.bool)
        connections[6, 0] = connections[6, 4] = connections[6, 5] = connections[7, 4] = connections[7, 5] = True
        machine = rv.DenseMachine((1,) * 8, "tanh", connections=connections)
        assert _stages.schedule_of(machine._plan_at(1, 0), machine.activation.codes).zeros
        self.check(machine)

    @pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
    def test_an_infinite_z_leaves_alone_what_it_does_not_feed(self):
        machine = rv.DenseMachine((1, 1, 1, 1), "identity", device=DEVICE, bias=False).requires_grad_(False)
        y0 = torch.tensor([[1.0, 2.0, torch.inf, 3.0]], device=DEVICE)
        y, _ = _triton.sweep(machine.operator, machine._plan(y0), machine.activation, machine.weight, y0, None, None)
        assert y[0, :2].isfinite().all()

    def test_narrow_blocks_are_solved_in_groups(self):
        machine = rv.DenseMachine((3, 1, 1, 2, 9, 1, 4), "gelu")
        self.check(machine)
        assert _stages.schedule_of(machine._plan_at(1, 0), machine.activation.codes).grouped

    def test_mixed_activations_and_some_connections(self):
        connections = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
        self.check(rv.DenseMachine((2, 3, 1, 2), ["identity", "relu", "sin", "silu"], connections=connections))

    @pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (5, 2, 1, 1, 9)])
    def test_windows_and_products_between_them(self, sizes, monkeypatch):
        monkeypatch.setattr(_stages, "_window", lambda *_: 6)
        monkeypatch.setattr(_stages, "COVERED", 8)
        machine = rv.DenseMachine(sizes, "softsign")
        self.check(machine)
        assert len(_stages.schedule_of(machine._plan_at(1, 0), machine.activation.codes).steps) > 2

    def test_lags_and_time_blocks(self):
        self.check(rv.RecurrentMachine((2, 3, 1), "tanh", lags=4, time_block=3), 7)

    def test_sequential_with_one_lag(self):
        self.check(rv.RecurrentMachine((9, 3), "tanh", lags=1, connections="sequential"), 3)

    @pytest.mark.parametrize("time_block", [1, 2])
    def test_long_pasts_are_products(self, time_block, monkeypatch):
        monkeypatch.setattr(_stages, "PULLED", 4)
        self.check(rv.RecurrentMachine((2, 3), "tanh", lags=3, time_block=time_block), 5)

    @pytest.mark.parametrize(("steps", "history"), [(4, 0), (9, 0), (9, 3)])
    @pytest.mark.parametrize("time_block", [1, 2])
    def test_many_lags_are_products_over_chunks(self, time_block, steps, history, monkeypatch):
        """Of two chunks, the cotangents of the first are written by one product; of more, each is added to."""
        monkeypatch.setattr(_plan, "CHUNK", 2)
        monkeypatch.setattr(_stages, "PULLED", 12)
        machine = rv.RecurrentMachine((2, 3), "tanh", lags=6, time_block=time_block)
        assert machine._plan_at(steps, history).chunk == 2
        self.check(machine, steps + history, history=history)

    @pytest.mark.parametrize("time_block", [1, 2])
    def test_history(self, time_block):
        self.check(rv.RecurrentMachine((2, 3, 1), "tanh", lags=3, time_block=time_block), 5, history=2)

    def test_lengths(self):
        self.check(rv.RecurrentMachine((2, 3, 1), "sigmoid", lags=2), 4, lengths=[4, 0, 2])

    @pytest.mark.parametrize("sizes", [(3, 5, 2), (1, 1, 17, 1)])
    @pytest.mark.parametrize("padding", ["same", "causal", (0, 3)])
    def test_convolutions_of_few_positions(self, sizes, padding):
        self.check(rv.ConvMachine(sizes, "tanh", kernel_size=4, padding=padding), 7)

    @pytest.mark.parametrize("positions", [1, 64])
    def test_convolutions_of_one_and_of_most_positions(self, positions):
        self.check(rv.ConvMachine((2, 1, 2), "tanh", kernel_size=3), positions)

    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_activations_and_slopes(self, name):
        self.check(rv.DenseMachine((8, 8), name))

    def test_many_samples(self):
        """More than one program, and more than one sample in each."""
        machine = rv.DenseMachine((5, 4), "tanh", device=DEVICE).requires_grad_(False)
        y0 = torch.randn(600, 9, device=DEVICE)
        self.same(machine.operator, machine._plan(y0), machine.activation, machine.weight, y0, None, None)

    def test_no_samples(self):
        machine = rv.DenseMachine((5, 4), "tanh", device=DEVICE).requires_grad_(False)
        y0 = torch.randn(0, 9, device=DEVICE)
        y, z = _triton.sweep(machine.operator, machine._plan(y0), machine.activation, machine.weight, y0, None, None)
        assert y.shape == z.shape == (0, 9)
        machine = rv.RecurrentMachine((2, 3), lags=2, device=DEVICE).requires_grad_(False)
        y0 = torch.randn(0, 4, 5, device=DEVICE)
        assert not _triton.cotangent(machine.operator, machine._plan(y0), y0, y0).any()
