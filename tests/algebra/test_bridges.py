"""Structured machines and ordinary modules as sums."""

from typing import Any, cast

import pytest
import torch
from cases import ALL_MACHINES, randomize
from networks import longest_path, the_papers_figure
from tolerance import assert_equal
from torch import nn
from torch.testing import assert_close

import resolvent as rv

f64 = torch.float64


@pytest.mark.parametrize("name", ALL_MACHINES)
def test_a_structured_machine_is_the_sum_it_expands_into(name):
    case = ALL_MACHINES[name]()
    machine = randomize(case.machine)
    y0, z0 = case.points(2)
    f = machine.as_sum(*case.extent if "recurrent" in name else ())
    h = f(machine.as_point(y0, z0))
    y, z = machine.solve(y0, z0)
    for half, x in (("y", y), ("z", z)):
        for part, value in machine.as_point(torch.zeros_like(y), x).items():
            if part.startswith("z"):  # y's own parts would have the bias added
                assert_equal(h[half + part[1:]], value)
    if "some" not in name and "sequential" not in name and name != "dense, packed":
        assert f.depth == case.depth


def test_expansions_of_two_machines_add():
    first, second = (randomize(rv.DenseMachine((2, 2), dtype=f64), seed) for seed in (1, 2))
    link = rv.Layer(torch.sin, reads="a.z1", writes="b.y0")
    f = first.as_sum("a.") + second.as_sum("b.") + link
    assert f.depth == 3 + 1 + 3
    x = torch.randn(5, 4, dtype=f64)
    y = torch.randn(5, 4, dtype=f64)
    h = f(first.as_point(x, prefix="a.") | second.as_point(y, prefix="b."))
    y[:, :2] += torch.sin(first.split(first(x))[1])
    assert_equal(h["b.z1"], second.split(second(y))[1])


def test_a_structured_machine_is_a_layer_of_a_sum():
    machine = rv.DenseMachine((2, 3))
    f = rv.Layer(machine, reads="x", writes="z") + rv.Layer(nn.Linear(5, 1), reads="z", writes="out")
    x = torch.randn(4, 2)
    f({"x": x})["out"].sum().backward()
    assert machine.weight.grad is not None


def test_from_sequential():
    network = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    f = rv.Sum.from_sequential(network)
    x = torch.randn(5, 3)
    assert f.depth == 3
    assert_close(f({"x0": x})["x3"], network(x))
    assert all(p is q for p, q in zip(f.parameters(), network.parameters(), strict=True))


@pytest.mark.unchecked  # type checks would refuse it first
def test_from_sequential_takes_no_other_module():
    with pytest.raises(TypeError, match=r"sequential must be an nn.Sequential, got Linear"):
        rv.Sum.from_sequential(cast(Any, nn.Linear(2, 2)))


class ResidualBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + x)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.bottom = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        left = torch.relu(self.down(x))
        low = torch.relu(self.bottom(nn.functional.max_pool2d(left, 2)))
        return self.out(torch.cat([left, self.up(low)], 1)).view(x.size(0), -1)


class DenseBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3 + 2 * i, 2, 3, padding=1) for i in range(3))

    def forward(self, x):
        for conv in self.convs:
            a, b = conv(x).chunk(2, 1)
            x = torch.cat([x, torch.tanh(a), b], 1)
        return x


@pytest.mark.parametrize(("network", "depth"), [(ResidualBlock, 6), (UNet, 9), (DenseBlock, 12)])
def test_from_module_is_the_same_network_with_the_depth_of_its_longest_path(network, depth):
    module = network().eval()
    x = torch.randn(2, 3, 4, 4)
    f = rv.Sum.from_module(module, x)
    assert f.depth == depth == longest_path(f.layers)
    new = torch.randn(5, 3, 4, 4)
    (output,) = f.outputs
    assert_close(f({"x": new})[output], module(new))
    assert {id(p) for p in f.parameters()} == {id(p) for p in module.parameters()}


def test_from_sequential_reads_modules_that_work_in_place_as_those_that_do_not():
    sequential = nn.Sequential(nn.Linear(2, 3), nn.ReLU(inplace=True), nn.Linear(3, 1))
    f, x = rv.Sum.from_sequential(sequential), torch.randn(5, 2)
    assert f.depth == 3
    h = f({"x0": x})
    assert_close(h["x3"], sequential(x))
    assert (h["x1"] < 0).any()  # as they were read
    assert sequential[1].inplace


def test_from_module_reads_modules_that_work_in_place_as_those_that_do_not():
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 1), nn.ELU(inplace=True))
    f, x = rv.Sum.from_module(module, torch.randn(3, 2)), torch.randn(5, 2)
    assert f.depth == 4
    assert_close(f({f.inputs[0]: x})[f.outputs[0]], module(x))
    assert module[1].inplace


class ReadAgain(nn.Module):
    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = x * 1
        return self.relu(y) + y


class Negate(nn.Module):
    def forward(self, x):
        return x.neg_() + 1


def test_from_module_refuses_what_is_not_a_pure_function():
    with pytest.raises(ValueError, match="came out differently"):  # what is read twice, and changed in between
        rv.Sum.from_module(ReadAgain(), torch.randn(3, 2))
    example = torch.ones(3, 2)
    with pytest.raises(ValueError, match="writes to its input in place"):
        rv.Sum.from_module(Negate(), example)
    assert_close(example, torch.ones(3, 2))
    norm = nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match=r"the module changes its buffer running_mean, .* call eval"):
        rv.Sum.from_module(norm, torch.randn(3, 2))
    assert norm.num_batches_tracked == 0
    with pytest.raises(ValueError, match="not a pure function"):
        rv.Sum.from_module(nn.Sequential(nn.Dropout()), torch.randn(30, 2))
    with pytest.raises(ValueError, match="example has 2 tensors, Sequential takes input"):
        rv.Sum.from_module(nn.Sequential(nn.Tanh()), torch.randn(3), torch.randn(3))
    with pytest.raises(ValueError, match="returns a tuple from _0"):
        rv.Sum.from_module(nn.GRU(2, 3), torch.randn(4, 1, 2))


class Sizes(nn.Module):
    def forward(self, x, unused):
        n = x.size(0) // 2
        return torch.cos(x[:n]) + torch.sin(torch.sin(x))[:n]


def test_an_operation_with_several_results_is_one_layer():
    f = rv.Sum.from_module(DenseBlock(), torch.randn(2, 3, 4, 4))
    assert [len(layer.writes) for layer in f.layers] == [1, 2, 1, 1] * 3  # conv, chunk, tanh, cat


def test_from_module_computes_sizes_where_they_are_used():
    x = torch.randn(4, 2)
    f = rv.Sum.from_module(Sizes(), x, x)
    assert f.depth == 4 == longest_path(f.layers)
    new = torch.randn(6, 2)
    assert_close(f({"x": new, "unused": new})["add"], Sizes()(new, new))


def test_from_module_takes_a_machine_for_one_layer():
    machine = rv.DenseMachine((2, 3))
    f = rv.Sum.from_module(nn.Sequential(machine, nn.Tanh()), torch.randn(4, 2))
    assert f.depth == 2
    assert rv.Sum.from_module(machine, torch.randn(4, 2)).depth == 1
    assert rv.Sum.from_module(nn.Sequential(rv.Network.dense(2, (3,), 1), nn.Tanh()), torch.randn(4, 2)).depth == 2


def test_integers_are_constants_of_the_derivatives():
    embedding = nn.Embedding(5, 2, dtype=f64)
    f = rv.Layer(embedding, reads="index", writes="x") + rv.Layer(torch.sin, reads="x", writes="y")
    h = f({"index": torch.tensor([1, 4])})
    u = f.dual(h).resolvent({"y": torch.ones(2, 2, dtype=f64)})
    assert_equal(u["x"], h["x"].cos())
    expected = torch.autograd.grad(h["y"].sum(), embedding.weight)
    assert_equal(list(f.parameter_cotangents(h, u).values()), expected)


def test_to_networkx_is_the_bipartite_graph():
    networkx = pytest.importorskip("networkx")
    f1, f2, f3, f4, f5 = the_papers_figure()
    graph = (f1 + f2 + f3 + f4 + f5).to_networkx()
    assert networkx.is_directed_acyclic_graph(graph)
    assert set(graph.successors(f4)) == {"x5", "x6", "x7"}
    assert networkx.dag_longest_path_length(graph) == 2 * 4
    assert graph.nodes[f4]["label"] == "f4"
