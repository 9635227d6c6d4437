"""The kernels for GPUs give what the sweep gives step by step: for σ, for slopes in each of their forms, and for σ = 0.

Without a GPU they are interpreted.
"""

import subprocess
import sys
import threading

import pytest
import torch
from cases import cases, outputs_and_gradients, randomize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels import DEVICE, MARKS, _triton, check, constants, launches_of, same, schedule_of
from tolerance import assert_same
from torch.testing import assert_close

import resolvent as rv
from resolvent.executors import native as _native
from resolvent.executors import triton
from resolvent.executors.triton import launches as _launches
from resolvent.executors.triton.launch import outside_of_graphs
from resolvent.structure.activation import ACTIVATIONS
from resolvent.structure.sigma import ITSELF, SLOPE, SLOPE_AT, ZERO, Sigma
from resolvent.sweep import cut as _cut
from resolvent.sweep import plan as _plan
from resolvent.sweep import stages as _stages
from resolvent.sweep.executor import EXECUTORS
from resolvent.sweep.solve import sweep
from resolvent.sweep.steps import steps

pytestmark = MARKS


def test_wide_blocks():
    check(rv.DenseMachine((17, 33, 9), "tanh"))


def test_blocks_wider_than_a_stage():
    machine = rv.DenseMachine((70, 3, 129), "tanh")
    check(machine)
    assert len(schedule_of(machine).stages) == 2 + 1 + 3


@pytest.mark.parametrize("sizes", [(3, 1, 2, 9), (16, 32, 16), (32, 32, 32)])
def test_tiles_of_many_samples(sizes, monkeypatch):
    """Of which the last machine fills all of its tiles; as many samples for each program as on a smaller GPU."""
    monkeypatch.setattr(_triton, "PROGRAMS", 4)
    check(rv.DenseMachine(sizes, "tanh"), batch=17)


@pytest.mark.parametrize("case", ["dense", "conv", "recurrent"])
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_autograd_through_the_kernels_gives_the_plain_gradients(case, data, monkeypatch):
    """As a machine on a GPU calls the kernels, with windows and products between them."""
    monkeypatch.setattr(_cut, "_window", lambda *_: 6)
    drawn = data.draw(cases(kinds=(case,), widths=(1, 5), activations=("tanh",), axes=(1,)))
    machine = drawn.machine.to(DEVICE, torch.float32)
    points = [x.float().to(DEVICE) for x in drawn.points(4)]
    axis, channels = machine.operator.channel_axis, data.draw(st.sampled_from(machine.partition.ends))
    arguments = (machine, points[0].narrow(axis, 0, channels), *points[1:])
    with monkeypatch.context() as patch:
        patch.delitem(EXECUTORS, DEVICE)
        expected = outputs_and_gradients(*arguments)
        patch.setitem(EXECUTORS, DEVICE, triton)
        assert_same(outputs_and_gradients(*arguments), expected)


def test_without_the_extension_the_kernels_give_the_same(monkeypatch):
    monkeypatch.setattr(_native, "extension", None)
    check(rv.DenseMachine((5, 9), "tanh"))
    machine = rv.DenseMachine((2, 1), bias=False, device=DEVICE).requires_grad_(False)
    x = torch.randn(3, 4, device=DEVICE)
    arguments = (machine.system, ITSELF, machine.weight, None)
    same(*arguments, x.mT[:, :3], None)  # neither contiguous nor aligned
    same(*arguments, x[:, :3], x[:, :2])  # z0 has the first block
    same(*arguments, None, x[:, :2])
    assert _triton.cotangent(machine.system, x[:, :3], x[:, :2]) is None
    for y0, z0 in ((x, None), (x[:, :3].double(), None), (x[:, :3], x[:, :1]), (x[:, :3], x[:, :3].int())):
        assert _triton.sweep(*arguments, y0, z0) is None


def test_under_autocast_kernels_compute_in_the_precision_of_their_points(monkeypatch):
    monkeypatch.setattr(_plan, "CHUNK", 2)
    monkeypatch.setattr(_cut, "PULLED", 24)
    monkeypatch.setitem(EXECUTORS, DEVICE, triton)
    machine = rv.RecurrentMachine((9, 3), "tanh", lags=6, device=DEVICE).requires_grad_(False)
    x = torch.randn(2, 4, 12, device=DEVICE)

    def results():
        solution = sweep(machine.system, ITSELF, machine.weight, None, x, None)
        return [*solution, triton.cotangent(machine.system, x, x)]

    expected = results()
    with torch.autocast(DEVICE, torch.bfloat16):
        assert_close(results(), expected, rtol=0, atol=0)


def test_what_is_made_outside_of_graphs_is_made_in_another_thread_also_once_the_main_one_has_ended():
    assert outside_of_graphs(threading.get_ident)() != threading.get_ident()
    with pytest.raises(ZeroDivisionError):
        outside_of_graphs(lambda x: 1 / x)(0)
    program = """
import threading
from resolvent.executors.triton.launch import outside_of_graphs

def late():
    threading.main_thread().join()
    print(outside_of_graphs(lambda: "made")())

threading.Thread(target=late).start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "made\n", done.stderr


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_tanh_is_exact_to_a_few_numbers_of_every_size_in_32_bits():
    y0 = torch.logspace(-37, 38, 2**14, device=DEVICE)
    y0 = torch.cat([y0, *(torch.linspace(*ends, 2**14, device=DEVICE) for ends in ((0, 2), (7, 9)))]).reshape(-1, 16)
    y0 = torch.cat([y0, -y0])
    machine = rv.DenseMachine((16,), "tanh", bias=False, device=DEVICE).requires_grad_(False)
    _, z = _triton.sweep(machine.system, ITSELF, machine.weight, None, y0, None)
    assert_close(z.double(), torch.tanh(y0.double()), rtol=7e-7, atol=0)
    assert (z.abs() <= 1).all()
    assert (z[y0.abs() > 8.4].abs() == 1).all()


def test_places_in_64_bits_give_the_same(monkeypatch):
    monkeypatch.setattr(_launches, "INDEX_LIMIT", 1)
    monkeypatch.setattr(_triton, "PROGRAMS", 2)
    check(rv.RecurrentMachine((2, 3), "tanh", lags=2), 3, batch=5)


@pytest.mark.parametrize("case", ["dense", "conv", "recurrent"])
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_any_machine_however_it_is_cut(case, data, monkeypatch):
    """With windows, tiles and pasts so small that each machine meets them."""
    sizes = dict(_window=lambda *_: 6, NARROW=2, GROUP=3, TILE=4, PULLED=8)
    for name, value in sizes.items():
        monkeypatch.setattr(_cut, name, value)
    monkeypatch.setattr(_stages, "COVERED", 8)
    monkeypatch.setattr(_plan, "CHUNK", 2)
    drawn = data.draw(cases(kinds=(case,), widths=(1, 2, 5), activations=("tanh", "relu"), axes=(1,)))
    check(drawn.machine, *drawn.extent)


def test_products_onto_parts_of_which_some_were_added_to(monkeypatch):
    """The first half feeds block 6 alone, and then blocks 4 and 5 feed 6 and 7 in one product."""
    monkeypatch.setattr(_cut, "_window", lambda *_: 2)
    connections = torch.zeros(8, 8, dtype=torch.bool)
    connections[6, 0] = connections[6, 4] = connections[6, 5] = connections[7, 4] = connections[7, 5] = True
    machine = rv.DenseMachine((1,) * 8, "tanh", connections=connections)
    assert schedule_of(machine).zeros
    check(machine)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_an_infinite_z_leaves_alone_what_it_does_not_feed():
    machine = rv.DenseMachine((1, 1, 1, 1), "identity", device=DEVICE, bias=False).requires_grad_(False)
    y0 = torch.tensor([[1.0, 2.0, torch.inf, 3.0]], device=DEVICE)
    y, _ = _triton.sweep(machine.system, ITSELF, machine.weight, None, y0, None)
    assert y[0, :2].isfinite().all()


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_what_fills_up_a_group_feeds_nothing():
    machine = rv.DenseMachine((1, 1, 1, 9), "identity", device=DEVICE, bias=False).requires_grad_(False)
    machine.weight.fill_(1)
    u0 = torch.zeros(1, 12, device=DEVICE)
    u0[0, -1] = torch.inf
    u, _ = _triton.sweep(machine.system.dual, Sigma(SLOPE, torch.ones_like(u0)), machine.weight, None, u0, None)
    assert (u[0, :3] == torch.inf).all()


@pytest.mark.parametrize(("sizes", "stages"), [((3, 1, 1, 2, 9, 1, 4), 3), ((1, 2, 1, 3, 8), 3), ((2,) * 8, 4)])
@pytest.mark.parametrize("batch", [3, 9])
def test_narrow_blocks_are_solved_in_groups(sizes, stages, batch, monkeypatch):
    """Which pull from earlier groups as a stage does."""
    monkeypatch.setattr(_triton, "PROGRAMS", 2)
    monkeypatch.setattr(_cut, "GROUP", 4)
    machine = rv.DenseMachine(sizes, "gelu")
    check(machine, batch=batch)
    schedule = schedule_of(machine)
    assert schedule.grouped
    assert len(schedule.stages) == stages


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("width", [1, 2, 4])
def test_blocks_that_fill_panels_and_groups(width, monkeypatch):
    """An infinite z and weights that are not read leave alone what they do not feed, as a sum of all would not."""
    monkeypatch.setattr(_cut, "GROUP", 32)
    monkeypatch.setattr(_triton, "PROGRAMS", 1)
    used = launches_of(monkeypatch)
    machine = rv.DenseMachine((width,) * (64 // width), "elu")
    check(machine, batch=5)
    assert all(constants(launches)["WIDTH"] == width for launches in used)
    unread = ~machine.operator.mask(machine.connections.expand(machine.partition))
    machine.weight.masked_fill_(unread.to(DEVICE), torch.nan)
    y0 = torch.randn(5, 64, device=DEVICE)
    y0[1, 21] = torch.inf
    for way, sigma in ((machine.system, ITSELF), (machine.system.dual, Sigma(SLOPE, torch.ones_like(y0)))):
        arguments = (way, sigma, machine.weight, None, y0, None)
        assert_close(_triton.sweep(*arguments), steps(*arguments), equal_nan=True)


@pytest.mark.parametrize("kind", [rv.DenseMachine, rv.ConvMachine, rv.RecurrentMachine])
def test_packed_weights(kind):
    """The kernels take them whole."""
    machine = kind((3, 5, 2), packed=True)
    check(machine, {"dense": None, "conv": 6, "recurrent": 4}[machine.kind])


def test_mixed_activations_and_some_connections():
    connections = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 1, 0]], dtype=torch.bool)
    check(rv.DenseMachine((2, 3, 1, 2), ["identity", "relu", "sin", "silu"], connections=connections))


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (5, 2, 1, 1, 9)])
def test_windows_and_products_between_them(sizes, monkeypatch):
    monkeypatch.setattr(_cut, "_window", lambda *_: 6)
    monkeypatch.setattr(_stages, "COVERED", 8)
    machine = rv.DenseMachine(sizes, "softsign")
    check(machine)
    assert len(schedule_of(machine).steps) > 2


@pytest.mark.parametrize(("sizes", "window", "even"), [((32,) * 4, 64, False), ((64,) * 4, 128, True)])
def test_tiles_of_windows_are_full_or_masked(sizes, window, even, monkeypatch):
    monkeypatch.setattr(_cut, "_window", lambda *_: window)
    monkeypatch.setattr(_triton, "PROGRAMS", 4)
    used = launches_of(monkeypatch)
    check(rv.DenseMachine(sizes, "tanh"), batch=17)
    assert (constants(used[0])["K_TILE"], constants(used[0])["EVEN"]) == (64, even)


def test_narrow_blocks_read_no_further_than_the_weight():
    machine = randomize(rv.DenseMachine((1, 3, 1), "tanh", device=DEVICE)).requires_grad_(False)
    memory = torch.full((100,), torch.nan, device=DEVICE)
    weight = memory[:25].view(5, 5).copy_(machine.weight)
    y = torch.randn(3, 5, device=DEVICE)
    for way, sigma in ((machine.system, ITSELF), (machine.system.dual, Sigma(SLOPE_AT, y))):
        same(way, sigma, weight, None, y, None)


@pytest.mark.parametrize("sizes", [(3, 5, 2), (1, 1, 17, 1)])
@pytest.mark.parametrize("padding", ["same", "causal", (0, 3)])
def test_convolutions_of_few_positions(sizes, padding):
    check(rv.ConvMachine(sizes, "tanh", kernel_size=4, padding=padding), 7)


@pytest.mark.parametrize("positions", [1, 64])
def test_convolutions_of_one_and_of_most_positions(positions):
    check(rv.ConvMachine((2, 1, 2), "tanh", kernel_size=3), positions)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_where_sigma_is_zero_an_infinite_y_adds_nothing():
    """With no σ at all, and in the dual's steps of history."""
    machine = rv.RecurrentMachine((1, 1), "tanh", lags=1, bias=False, device=DEVICE).requires_grad_(False)
    machine.weight.fill_(2)
    ones = torch.ones(1, 2, 2, device=DEVICE)
    late = torch.tensor([[[1.0, 1.0], [3e38, 3e38]]], device=DEVICE)
    for way, sigma, y0, z0 in (
        (machine.system, ZERO, ones * torch.inf, ones),
        (machine.system.dual, Sigma(SLOPE_AT, ones * 0, history=1), ones * 0, late),
    ):
        arguments = (way, sigma, machine.weight, None, y0, z0)
        torch.testing.assert_close(_triton.sweep(*arguments), steps(*arguments))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_and_slopes(name):
    check(rv.DenseMachine((9, 2, 1), name))  # of which the last two are a group


def test_no_samples():
    machine = rv.DenseMachine((5, 4), "tanh", device=DEVICE).requires_grad_(False)
    y0 = torch.randn(0, 9, device=DEVICE)
    y, z = _triton.sweep(machine.system, ITSELF, machine.weight, None, y0, None)
    assert y.shape == z.shape == (0, 9)
    machine = rv.RecurrentMachine((2, 3), lags=2, device=DEVICE).requires_grad_(False)
    y0 = torch.randn(0, 4, 5, device=DEVICE)
    assert not _triton.cotangent(machine.system, y0, y0).any()
