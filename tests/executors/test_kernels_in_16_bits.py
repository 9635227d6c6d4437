"""The kernels for GPUs in 16 bits: W is read where it lies, and equal blocks share a stage.

Without a GPU they are interpreted.
"""

import pytest
import torch
from cases import randomize, read_part
from kernels import DEVICE, MARKS, _triton, launches_of, schedule_of
from tolerance import assert_near

import resolvent as rv
from resolvent.structure.sigma import FUNCTION, ITSELF, SLOPE_AT, ZERO, Sigma
from resolvent.sweep import cut as _cut
from resolvent.sweep.steps import steps

pytestmark = [*MARKS, pytest.mark.usefixtures("products_of_views_read_no_further")]


def check(machine, batch):
    machine = randomize(machine.to(DEVICE, torch.float16)).requires_grad_(False)
    machine.weight.div_(machine.partition.total**0.5)
    n, system = machine.partition.total, machine.system
    weight, points = machine.weight, [torch.randn(batch, n, device=DEVICE).half() for _ in range(3)]
    for way, sigma in ((system, ITSELF), (system.dual, Sigma(SLOPE_AT, points[2]))):
        exact = sigma if sigma is ITSELF else Sigma(SLOPE_AT, points[2].float())
        W, y0, *both = (x.float() for x in (weight, *points[:2]))
        for z0, exact_z0 in ((points[1], *both), (None, None)):
            expected = steps(way, exact, W, None, y0, exact_z0)
            actual = _triton.sweep(way, sigma, weight, None, points[0], z0)
            for a, e in zip(actual, expected, strict=True):
                assert a.dtype == torch.float16
                assert_near(a, e)
    Q = _triton.cotangent(system, *points[:2])
    assert_near(Q, (points[0].float().mT @ points[1].float()).where(read_part(machine).to(DEVICE), 0))


@pytest.mark.parametrize("sizes", [(64, 64, 64), (3, 9, 2), (16, 5, 16)])
@pytest.mark.parametrize("batch", [3, 270])
def test_the_sweep_is_exact_up_to_rounding(sizes, batch):
    """In which W is read where it lies."""
    check(rv.DenseMachine(sizes, "tanh"), batch)


@pytest.mark.parametrize(
    ("sizes", "window", "activations", "missing", "widest"),
    [
        ((16,) * 20, 1024, ("tanh",), None, 256),
        ((16,) * 20, 80, ("tanh",), None, 80),
        ((16,) * 5, 1024, ("tanh", "tanh", "tanh", "sin", "sin"), None, 48),
        ((32,) * 6, 1024, ("tanh",), (3, 1), 96),
        ((70, 16, 16, 16, 16, 3, 16, 16), 1024, ("tanh",), None, 64),
    ],
)
def test_equal_blocks_share_a_stage(sizes, window, activations, missing, widest, monkeypatch):
    """As many as one may have, as there are in a window, of the same σ, or that are fed by all of it."""
    monkeypatch.setattr(_cut, "_window", lambda *_: window)
    connections = torch.ones(len(sizes), len(sizes), dtype=torch.bool).tril(-1)
    if missing is not None:
        connections[missing] = False
    activations = activations * (len(sizes) // len(activations))
    machine = rv.DenseMachine(sizes, activations, connections=connections)
    schedule = schedule_of(machine, half=True)
    assert (schedule.grouped, schedule.width) == (sizes[1], widest)
    check(machine, batch=270)


@pytest.mark.parametrize(
    ("sizes", "batch", "grouped"),
    [
        ((16, 16), 270, 16),
        ((16, 16), 3, 0),  # samples one by one, which are no tiles
        ((16,) * 8 + (64,) * 3, 270, 64),
        ((16, 16, 48), 270, 0),
        ((64, *[1] * 60), 270, 1),
    ],
)
def test_blocks_of_the_width_that_most_channels_have_share_a_stage(sizes, batch, grouped, monkeypatch):
    """Unless there are more narrow ones."""
    used = launches_of(monkeypatch)
    machine = rv.DenseMachine(sizes, "tanh", device=DEVICE, dtype=torch.float16).requires_grad_(False)
    y0 = torch.zeros(batch, sum(sizes), device=DEVICE, dtype=torch.float16)
    _triton.sweep(machine.system, ITSELF, machine.weight, None, y0, None)
    assert used[0].schedule.grouped == grouped


@pytest.mark.filterwarnings("ignore:(invalid value|overflow) encountered:RuntimeWarning")
def test_tanh_is_exact_to_the_next_number():
    """For each of them, in one launch of a machine that is σ alone."""
    y0 = torch.arange(-(2**15), 2**15, device=DEVICE).short().view(torch.float16).reshape(-1, 16)
    machine = rv.DenseMachine((16,), "tanh", bias=False, device=DEVICE, dtype=torch.float16).requires_grad_(False)
    _, z = _triton.sweep(machine.system, ITSELF, machine.weight, None, y0, None)
    expected = torch.tanh(y0.double())
    ulp = (2.0 ** torch.frexp(expected)[1].clamp(min=-13)) * 2**-11
    assert torch.equal(z.isnan(), y0.isnan())
    assert ((z - expected).abs() <= ulp).masked_fill(y0.isnan(), True).all()


def test_sigma_is_zero_beyond_the_lengths_in_a_stage_of_equal_blocks():
    machine = rv.RecurrentMachine((16, 16, 16), "tanh", lags=0, device=DEVICE, dtype=torch.float16)
    randomize(machine).requires_grad_(False).weight.div_(48**0.5)
    y0, z0 = (torch.randn(270, 2, 48, device=DEVICE).half() for _ in range(2))
    inside = machine._inside(torch.arange(270, device=DEVICE) % 3, y0)
    sigma = Sigma(FUNCTION, inside=inside)
    y, z = _triton.sweep(machine.system, sigma, machine.weight, None, y0, z0)
    exact = (machine.system, sigma, machine.weight.float(), None, y0.float(), z0.float())
    for actual, expected in zip((y, z), steps(*exact), strict=True):
        assert_near(actual, expected)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_an_infinite_z_in_a_stage_of_equal_blocks_leaves_alone_what_it_does_not_feed():
    machine = rv.DenseMachine((16,) * 3, "identity", bias=False, device=DEVICE, dtype=torch.float16)
    machine.requires_grad_(False).weight.fill_(0.01)  # what is not read, too
    y0 = torch.ones(270, 48, device=DEVICE).half()
    y0[:, 20] = torch.inf
    y, _ = _triton.sweep(machine.system, ITSELF, machine.weight, None, y0, None)
    u, _ = _triton.sweep(machine.system.dual, ZERO, machine.weight, None, y0, y0)
    for x, fed in ((y, slice(32, None)), (u, slice(16))):
        infinite = y0.isinf()
        infinite[:, fed] = True
        assert torch.equal(x.isinf(), infinite)
