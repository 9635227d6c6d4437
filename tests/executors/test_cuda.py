"""On a GPU the machines give the numbers of the CPU."""

import copy

import pytest
import torch
from cases import ALL_MACHINES, randomize
from tolerance import assert_equal, assert_near

import resolvent as rv

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
every_machine = pytest.mark.parametrize("name", ALL_MACHINES)


def solve_and_differentiate(machine, y0, z0, v0, u0):
    inputs = [machine.weight, y0.requires_grad_(), z0.requires_grad_()]
    outputs = machine.solve(y0, z0)
    return [*outputs, *torch.autograd.grad(outputs, inputs, (v0, u0))]


@every_machine
def test_values_and_cotangents_are_those_of_the_cpu(name):
    case = ALL_MACHINES[name]()
    machine, points = randomize(case.machine), case.points(4)
    on_gpu = solve_and_differentiate(copy.deepcopy(machine).cuda(), *(x.cuda() for x in points))
    assert_equal([x.cpu() for x in on_gpu], solve_and_differentiate(machine, *points))


@every_machine
def test_float32_is_ieee_float32(name):
    """Not TF32, whose error would be a hundred times the tolerance."""
    case = ALL_MACHINES[name]()
    machine, points = randomize(case.machine), case.points(4)
    exact = solve_and_differentiate(machine, *points)
    machine.float().cuda()
    for actual, expected in zip(
        solve_and_differentiate(machine, *(x.detach().float().cuda() for x in points)), exact, strict=True
    ):
        assert_near(actual.cpu(), expected)


@every_machine
def test_autocast(name):
    case = ALL_MACHINES[name]()
    machine = randomize(case.machine).float().cuda()
    x = case.points(1)[0].cuda()
    with torch.autocast("cuda", torch.bfloat16):
        z = machine(x)
    assert z.dtype == torch.bfloat16
    assert_near(z, machine(x))
    z.float().sum().backward()
    assert machine.weight.grad.dtype == torch.float32


@every_machine
def test_jets_have_the_derivatives_and_gradients_of_the_cpu(name):
    case = ALL_MACHINES[name]()
    machine, (x, direction) = randomize(case.machine), case.points(2)

    def derivatives(machine, x, direction):
        z = machine(rv.jet(x, "a, aa", names="a", directions=[direction]))
        (gradient,) = torch.autograd.grad((z["a"] + z["aa"].sin()).sum(), machine.weight, retain_graph=True)
        return [z[""], z["a"], z["aa"], gradient]

    on_gpu = derivatives(copy.deepcopy(machine).cuda(), x.cuda(), direction.cuda())
    assert_equal([t.cpu() for t in on_gpu], derivatives(machine, x, direction))


@pytest.mark.unchecked
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # PyTorch's own, while it warms up
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")  # its advice to leave IEEE float32
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)  # step by step, and by fused kernels
@pytest.mark.parametrize("name", ["dense", "conv", "recurrent, sequential"])
def test_compiled_with_cuda_graphs(name, dtype):
    case = ALL_MACHINES[name]()
    machine = randomize(case.machine).to("cuda", dtype)
    torch._dynamo.reset()
    compiled = torch.compile(machine, mode="reduce-overhead", fullgraph=True)
    for _ in range(3):
        x = case.points(1)[0].to("cuda", dtype)
        assert_equal(compiled(x).clone(), machine(x))
        gradients = (torch.autograd.grad(f(x).square().sum(), machine.weight)[0].clone() for f in (compiled, machine))
        assert_equal(*gradients)
