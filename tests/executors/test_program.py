"""Programs of the native extension: what they say, against their reading in plain PyTorch in `programs.py`."""

import datetime
from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from programs import (
    ACTIVATE,
    BEFORE,
    FUNCTION,
    LOOP,
    NONE,
    PRODUCT,
    SIGMA,
    SLOPE,
    SLOPE_AT,
    UP_TO,
    WITHIN,
    Program,
    programs,
    reference,
    sigma_of,
)
from tolerance import TOLERANCE
from torch import Tensor


def extensions():
    for level in ("_v4", "_v3", "_v1"):
        try:
            yield import_module(f"resolvent.executors.native.{level}")
        except ImportError:
            continue


@pytest.fixture(params=list(extensions()) or [None], ids=lambda m: getattr(m, "__name__", "none"), scope="module")
def native(request):
    if request.param is None:
        pytest.skip("the extension was not built")
    return request.param


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(program=programs(), data=st.data())
def test_a_sweep_does_what_the_integers_say(native, program: Program, data):
    """One capsule serves any number of steps, any history, space and batch, and every mode."""
    capsule = native.program(program.integers)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    axis = -1 - len(program.kernel)
    W, bias = randn(*program.weight_shape) / 10, randn(program.channels) if data.draw(st.booleans()) else None
    for _ in range(2):
        batch, times = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 7)) if program.lags is not None else 1
        space, mode = tuple(data.draw(st.integers(1, 5)) for _ in program.kernel), data.draw(st.integers(0, 3))
        history = data.draw(st.integers(0, times))
        shape = program.point_shape(batch, times, space, program.channels)
        inputs = program.channels if program.transposed else data.draw(st.sampled_from(program.ends))
        short = program.point_shape(batch, times, space, inputs)
        z0, inside = randn(*shape), torch.rand(shape, generator=generator) < 0.7
        z0, inside = (x if data.draw(st.booleans()) else None for x in (z0, inside))
        y0 = randn(*short) if z0 is None or data.draw(st.booleans()) else None
        point = randn(*shape) if mode >= SLOPE else None
        value = None
        if point is not None and mode == SLOPE_AT and data.draw(st.booleans()):
            parts = point.tensor_split(program.ends[:-1], axis)
            value = torch.cat([SIGMA[c].function(x) for c, x in zip(program.codes, parts, strict=True)], axis)
        y = torch.zeros(shape, dtype=torch.float64)
        if y0 is not None:
            y.narrow(axis, 0, inputs).copy_(y0)
        if bias is not None:
            y += bias.view(-1, *(1,) * (-1 - axis))
        z = torch.zeros_like(y) if z0 is None else z0
        expected = reference(program, history, W, y, z, sigma_of(program, mode, point, inside))
        actual = native.sweep(capsule, None, 1, mode, history, W, bias, y0, z0, point, value, inside)
        threaded = native.sweep(capsule, None, 3, mode, history, W, bias, y0, z0, point, value, inside)
        for result, again, wanted in zip(actual, threaded, expected, strict=True):
            assert torch.equal(result, again)
            torch.testing.assert_close(result, wanted, rtol=1e-12, atol=1e-12 * max(1, wanted.abs().max().item()))
        if program.lags is not None:
            assert torch.equal(actual[1][:, :history], z[:, :history])


DENSE = Program(6, (1, 3, 6), (1, 5, 12), ((0, 1, 1, 6, 0, 1), (0, 1, 3, 6, 1, 3)),
                ((ACTIVATE, 0), (PRODUCT, 0, UP_TO), (ACTIVATE, 1), (PRODUCT, 1, UP_TO), (ACTIVATE, 2)))  # fmt: skip
LAGGED = Program(5, (2, 5), (1, 3), ((2, 5, 0, 5, 0, 5), (0, 2, 2, 5, 0, 2)),
                 ((LOOP, 4, ((PRODUCT, 0, BEFORE), (LOOP, 2, ((PRODUCT, 0, WITHIN), (ACTIVATE, 0), (PRODUCT, 1, UP_TO),
                                                              (ACTIVATE, 1))))),), lags=4)  # fmt: skip
PLANE = Program(4, (1, 4), (2, 7), ((0, 1, 1, 4, 0, 1),), ((ACTIVATE, 0), (PRODUCT, 0, UP_TO), (ACTIVATE, 1)),
                kernel=(3, 2), before=(2, 0))  # fmt: skip
VALID = {"dense": DENSE, "lagged": LAGGED, "plane": PLANE}
VALID |= {f"{name}, packed": p._replace(packed=True) for name, p in VALID.items()}
VALID |= {f"{name}, transposed": p._replace(transposed=True, steps=p.steps[::-1]) for name, p in VALID.items()}
each = pytest.mark.parametrize("program", VALID.values(), ids=VALID)


def points(program: Program, channels: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = program.point_shape(2, 6, (5, 4)[: len(program.kernel)], channels or program.channels)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def assert_is_ours(error: ValueError) -> None:
    assert str(error).startswith("program: ")


def sweep(native, program: Program, W: Tensor, y0: Tensor, capsule: Any = None) -> Any:
    capsule = native.program(program.integers) if capsule is None else capsule
    return native.sweep(capsule, None, 1, FUNCTION, 0, W, None, y0, None, None, None, None)


@each
def test_a_wrong_integer_is_refused_or_stays_within_bounds(native, program: Program):
    """What still parses is swept, so that a sanitizer sees what it reads and writes."""
    integers, swept = program.integers, 0
    for at, value in enumerate(integers):
        for wrong in (-1, 0, 1, 2, 7, value + 1, value - 1, 2**31, 2**62, -(2**63), 2**63, 10**30):
            changed = (*integers[:at], wrong, *integers[at + 1 :])
            try:
                capsule = native.program(changed)
            except ValueError as error:
                assert_is_ours(error)
                continue
            kind, channels, lags, axes, *sides = changed[:7]
            assert changed[11] in (0, 1)
            if any(side > 64 for side in (lags, channels, *sides)):
                continue
            x = torch.ones((2, *((6,) if kind == 1 else ()), channels, *(5, 4, 3)[:axes]), dtype=torch.float64)
            W = torch.ones_like(native.cotangent(capsule, 1, None, x, x))
            whole = (*(() if kind != 1 else (lags + 1,)), channels, channels, *sides[3 - axes :])
            assert W.ndim == 1 if changed[11] else W.shape == whole
            for history in (0, 1):
                y, z = native.sweep(capsule, None, 2, FUNCTION, history, W, None, x, x, None, None, None)
                assert y.shape == z.shape == x.shape
            assert native.cotangent(capsule, 1, W, x, x).shape == W.shape
            swept += 1
    assert swept > 10


@each
def test_missing_and_further_integers_are_refused(native, program: Program):
    for length in range(len(program.integers)):
        with pytest.raises(ValueError, match=r"^program: "):
            native.program(program.integers[:length])
    with pytest.raises(ValueError, match="has 2 integers too many"):
        native.program((*program.integers, 0, 0))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (DENSE._replace(rectangles=((0, 1, 1, 6, 0, 1), (0, 1, 3, 6, 4, 9))), "rectangle 1 reads channels 4 to 9 of 6"),
        (DENSE._replace(rectangles=((0, 1, 6, 6, 0, 1),) * 2), "rectangle 0 writes channels 6 to 6 of 6"),
        (LAGGED._replace(rectangles=((0, 6, 0, 5, 0, 5),) * 2), "rectangle 0 has lags 0 to 6 of 5"),
        (DENSE._replace(ends=(1, 3, 5)), "its blocks end at channel 5 of 6"),
        (DENSE._replace(ends=(1, 1, 6)), "the end of a block is 1, not 2 to 6"),
        (DENSE._replace(codes=(1, 13, 0)), "the code of an activation is 13, not 0 to 12"),
        (DENSE._replace(steps=((ACTIVATE, 3),)), "an activated block is 3, not 0 to 2"),
        (DENSE._replace(steps=((PRODUCT, 0, BEFORE),)), "the reach of a product is 1, not 0 to 0"),
        (DENSE._replace(steps=((LOOP, 1, ()),)), "it has a loop, but no time"),
        (LAGGED._replace(steps=((LOOP, 0, ()),)), "the stride of a loop is 0, not 1 to"),
        (LAGGED._replace(steps=((LOOP, 1, ((LOOP, 1, ((LOOP, 1, ((LOOP, 1, ((LOOP, 1, ()),)),)),)),)),)),
         "its loops are nested more than 4 deep"),
        (PLANE._replace(before=(3, 0)), "the padding before an axis is 3, not 0 to 2"),
        (PLANE._replace(kernel=(1, 2**40)), "a side of the kernel is 1099511627776, not 1 to 2147483648"),
        (PLANE._replace(kernel=(2**20, 2**30)), "its weight has too many entries"),
        (DENSE._replace(channels=2**63), "entry 1 exceeds 64 bits"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(native, program: Program, message):
    with pytest.raises(ValueError, match=f"^program: {message}"):
        native.program(program.integers)


def test_only_a_program_is_a_program(native):
    x, W = points(DENSE), torch.zeros(6, 6, dtype=torch.float64)
    for foreign in (bytes(400), None, datetime.datetime_CAPI, DENSE.integers):  # pyright: ignore
        with pytest.raises((TypeError, ValueError)):
            sweep(native, DENSE, W, x, capsule=foreign if foreign is not None else 0)
        with pytest.raises((TypeError, ValueError)):
            native.cotangent(foreign, 1, None, x, x)
        with pytest.raises((TypeError, ValueError)):
            native.addresses(foreign, W, None, x, None, None, None, None)
    for wrong in (bytes(400), list(DENSE.integers), None):
        with pytest.raises(TypeError, match="a tuple of integers is needed"):
            native.program(wrong)
    with pytest.raises(TypeError, match="entry 0 is no integer"):
        native.program((0.0, *DENSE.integers[1:]))
    with pytest.raises(ValueError, match="mode is 4, not 0 to 3"):
        native.sweep(native.program(DENSE.integers), None, 1, 4, 0, W, None, x, None, None, None, None)
    for call, count in (
        (native.sweep, 12),
        (native.gradients, 15),
        (native.numbers, 2),
        (native.cotangent, 5),
        (native.addresses, 8),
        (native.connect, 2),
    ):
        with pytest.raises(TypeError, match=f"{count} arguments needed, got 1"):
            call(None)


@each
def test_freed_memory_is_not_read(native, program: Program):
    W, x = torch.zeros(program.weight_shape, dtype=torch.float64), points(program)
    capsule = native.program(program.integers)
    assert sweep(native, program, W, x) is not None
    assert native.cotangent(capsule, 1, W, x, x) is not None
    whole, view = W.clone(), torch.zeros(W.numel() + 3, dtype=torch.float64)[3:].view(W.shape)
    far = torch.zeros(W.numel() + 10**6, dtype=torch.float64)[10**6 :].view(W.shape)
    for freed in (whole, view, far):
        freed.untyped_storage().resize_(0)
        assert sweep(native, program, freed, x) is None
        assert native.cotangent(capsule, 1, freed, x, x) is None
        assert native.addresses(capsule, freed, None, x, None, None, None, None) is None
    gone = x.clone()
    gone.untyped_storage().resize_(0)
    assert sweep(native, program, W, gone) is None


@each
def test_y0_has_the_first_blocks_and_all_where_it_is_transposed(native, program: Program):
    W, capsule = torch.zeros(program.weight_shape, dtype=torch.float64), native.program(program.integers)
    for channels in range(1, program.channels + 3):
        allowed = channels == program.channels or (channels in program.ends and not program.transposed)
        x = points(program, channels)
        assert (sweep(native, program, W, x) is not None) == allowed
        facts = native.addresses(capsule, W, None, x, None, None, None, None)
        assert (facts is not None) == allowed
        if allowed:
            assert facts[:2] == (2, channels)
            assert facts[3:] == (W.data_ptr(), 0, x.data_ptr(), 0, 0, 0, 0)


def test_history_is_within_the_steps(native):
    W, x, capsule = torch.zeros(LAGGED.weight_shape).double(), points(LAGGED), native.program(LAGGED.integers)
    for history in (-1, 7, 2**62):
        assert native.sweep(capsule, None, 1, FUNCTION, history, W, None, x, None, None, None, None) is None
    with pytest.raises(OverflowError):
        native.sweep(capsule, None, 1, FUNCTION, 2**64, W, None, x, None, None, None, None)


@each
def test_the_cotangent_is_v_z_where_the_weight_is_read(native, program: Program):
    """Whichever way the program goes."""
    capsule, v = native.program(program.integers), points(program)
    z = points(program).flip(0)
    W = torch.zeros(program.weight_shape, dtype=torch.float64, requires_grad=True)
    steps = tuple((PRODUCT, i, UP_TO) for i in range(len(program.rectangles)))
    forward = program._replace(transposed=False, steps=steps)
    (v * reference(forward, 0, W, torch.zeros_like(z), z, None)[0]).sum().backward()
    assert W.grad is not None
    for threads in (1, 3):
        torch.testing.assert_close(native.cotangent(capsule, threads, None, v, z), W.grad, rtol=1e-12, atol=1e-12)


@each
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradients_are_those_of_the_sweep_and_its_v(native, program: Program, dtype):
    """Of programs of a dual alone; with as many threads as there may be, and more samples than stay near at once."""
    capsule = native.program(program._replace(transposed=True).integers)
    axis, many = -1 - len(program.kernel), 300 if program.kernel == () else 3
    u0, v0, point, source = (
        points(program).to(dtype).repeat(many, *[1] * (points(program).ndim - 1)) for _ in range(4)
    )
    W = torch.randn(program.weight_shape, dtype=dtype) / 4
    tolerance = TOLERANCE[dtype] * 300
    for mode, both in ((SLOPE_AT, (u0, v0)), (SLOPE, (None, v0)), (NONE, (u0, None))):
        for threads in (1, 3):
            sweep = (capsule, None, threads, mode, 0, W, None, *both, point, None, None)
            _, v = native.sweep(*sweep)
            Q, of_bias, of_y0 = native.gradients(*sweep, source, True, 2)
            others = [i for i in range(v.ndim) if i != v.ndim + axis]
            expected = native.cotangent(capsule, 1, None, v, source), v.sum(others), v.narrow(axis, 0, 2)
            for a, e in zip((Q, of_bias, of_y0), expected, strict=True):
                torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance * e.abs().max().item())
            assert native.gradients(*sweep, source, False, 0)[1:] == (None, None)
    forward = native.program(program._replace(transposed=False).integers)
    for wrong in ((forward, source, 0), (capsule, None, 0), (capsule, source[:1], 0), (capsule, source, 7)):
        assert native.gradients(wrong[0], *sweep[1:], wrong[1], True, wrong[2]) is None


def test_no_points_are_swept_to_no_points(native):
    for program, shape in ((DENSE, (0, 6)), (LAGGED, (0, 4, 5)), (LAGGED, (2, 0, 5)), (PLANE, (2, 4, 0, 3))):
        x, capsule = torch.zeros(shape, dtype=torch.float64), native.program(program.integers)
        y, z = sweep(native, program, torch.ones(program.weight_shape, dtype=torch.float64), x)
        assert y.shape == z.shape == x.shape
        assert not native.cotangent(capsule, 1, None, x, x).any()


def test_shapes_beyond_all_memory_are_refused(native):
    """Expanded tensors have any number of entries."""
    x, W = torch.zeros((), dtype=torch.float64), torch.zeros(LAGGED.weight_shape, dtype=torch.float64)
    for shape in ((1, 2**61, 2), (2**61, 1, 2), (0, 2**60, 2), (1, 2**46, 5)):
        assert sweep(native, LAGGED, W, x.expand(shape)) is None
    for shape in ((1, 4, 2**30, 2**30), (1, 4, 2**60, 0), (1, 4, 0, 2**60)):
        assert sweep(native, PLANE, torch.zeros(PLANE.weight_shape).double(), x.expand(shape)) is None
    assert sweep(native, DENSE, torch.zeros(DENSE.weight_shape).double(), x.expand(2**61, 1)) is None


def test_new_tensors_come_from_what_it_is_connected_to(native):
    asked: list[str] = []

    def empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> Tensor:
        asked.append("memory")
        return torch.empty_strided(size, stride, dtype=dtype)

    def deterministic() -> bool:
        asked.append("deterministic")
        return False

    W, x = torch.zeros(6, 6, dtype=torch.float64), points(DENSE)
    with pytest.raises(TypeError, match="a function or None is needed"):
        native.connect(1, None)
    before = native.connect(empty_strided, deterministic)
    try:
        expected = sweep(native, DENSE, W, x)
        assert asked == ["deterministic", "memory"] * 2
        assert native.connect(lambda *_: torch.zeros(1), deterministic) == (empty_strided, deterministic)
        with pytest.raises(TypeError, match="a new tensor is not what was asked for"):
            sweep(native, DENSE, W, x)
        native.connect(None, None)
        assert all(map(torch.equal, sweep(native, DENSE, W, x), expected))
    finally:
        native.connect(*before)
