"""The first half of the paper: layers, sums, independence, depth, and derivatives of machines."""

from typing import Any

import pytest
import torch
from cases import ALL_MACHINES, cases, randomize
from hypothesis import given
from hypothesis import strategies as st
from tolerance import assert_equal
from torch import nn
from torch.testing import assert_close

import resolvent as rv

f64 = torch.float64


class Mix(nn.Module):
    """A smooth layer with parameters from and to any number of parts of dimension 2."""

    def __init__(self, reads: int, writes: int):
        super().__init__()
        self.reads, self.writes = reads, writes
        self.weight = nn.Parameter(torch.randn(2 * writes, 2 * max(reads, 1), dtype=f64))

    def forward(self, *xs):
        y = torch.tanh(torch.cat(xs, -1) @ self.weight.mT) if xs else self.weight[:, 0].expand(3, -1)
        return y.chunk(self.writes, -1) if self.writes > 1 else y


def layer(reads, writes):
    reads, writes = (names.split() for names in (reads, writes))
    return rv.Layer(Mix(len(reads), len(writes)), reads=reads, writes=writes if len(writes) > 1 else writes[0])


def the_papers_figure():
    f1, f2 = layer("x1 x2", "x3"), layer("x1", "x5")
    f3, f4, f5 = layer("x3", "x4"), layer("x4", "x5 x6 x7"), layer("x6", "x8")
    return f1, f2, f3, f4, f5


def random_point(f):
    return {name: torch.randn(3, 2, dtype=f64) for name in f.parts}


def plus(*points):
    total = {}
    for point in points:
        for name, value in point.items():
            total[name] = total[name] + value if name in total else value
    return total


def minus(point):
    return {name: -value for name, value in point.items()}


def assert_same_point(actual, expected):
    zero = torch.zeros(3, 2, dtype=f64)
    for name in {**actual, **expected}:
        assert_equal(actual.get(name, zero), expected.get(name, zero))


@st.composite
def networks(draw, names="abcdefgh"):
    """A random acyclic network, its layers in random order; layers read only earlier letters than they write."""
    layers = []
    for _ in range(draw(st.integers(1, 6))):
        first = draw(st.integers(1, len(names) - 1))
        writes = draw(st.lists(st.sampled_from(names[first:]), min_size=1, max_size=2, unique=True))
        earlier = names[: names.index(min(writes))]
        reads = draw(st.lists(st.sampled_from(earlier), min_size=0, max_size=3, unique=True))
        layers.append(layer(" ".join(reads), " ".join(writes)))
    return draw(st.permutations(layers))


# -- the figure with five layers and eight spaces


def test_the_order_of_the_papers_figure():
    f1, f2, f3, f4, f5 = the_papers_figure()
    f = f5 + f3 + f1 + f4 + f2
    assert [set(level) for level in f.levels] == [{f1, f2}, {f3}, {f4}, {f5}]
    assert f.depth == 4
    assert set(f.inputs) == {"x1", "x2"}
    assert set(f.outputs) == {"x5", "x7", "x8"}
    assert set(f.parts) == {f"x{i}" for i in range(1, 9)}


def test_the_eight_formulas_of_the_papers_figure():
    f1, f2, f3, f4, f5 = the_papers_figure()
    f = f1 + f2 + f3 + f4 + f5
    x = random_point(f)
    y = f(x)
    modules: list[Any] = [g.module for g in (f1, f2, f3, f4, f5)]
    m1, m2, m3, m4, m5 = modules
    y4 = m3(m1(x["x1"], x["x2"]) + x["x3"]) + x["x4"]
    assert_same_point(
        y,
        {
            "x1": x["x1"],
            "x2": x["x2"],
            "x3": m1(x["x1"], x["x2"]) + x["x3"],
            "x4": y4,
            "x5": m2(x["x1"]) + m4(y4)[0] + x["x5"],
            "x6": m4(y4)[1] + x["x6"],
            "x7": m4(y4)[2] + x["x7"],
            "x8": m5(m4(y4)[1] + x["x6"]) + x["x8"],
        },
    )


# -- sums


@given(networks())
def test_the_resolvent_inverts_id_minus_f(layers):
    f = rv.Sum(layers)
    x0, x = random_point(f), random_point(f)
    h = f(x0)
    assert_same_point(plus(h, minus(f.endofunction(h))), x0)
    assert_same_point(f(plus(x, minus(f.endofunction(x)))), x)


@given(networks())
def test_missing_parts_are_zero(layers):
    f = rv.Sum(layers)
    x0 = {name: value for name, value in random_point(f).items() if name in f.inputs}
    zeros = {name: torch.zeros(3, 2, dtype=f64) for name in f.parts}
    assert_same_point(f(x0), f(zeros | x0))


def longest_path(layers):
    following = {f: [g for g in layers if rv.depends(g, f)] for f in layers}

    def length(f):
        return 1 + max((length(g) for g in following[f]), default=0)

    return max(map(length, layers), default=0)


@given(networks())
def test_depth_is_the_longest_path(layers):
    f = rv.Sum(layers)
    assert f.depth == longest_path(layers)
    for level in f.levels:
        assert not any(rv.depends(g, h) for g in level for h in level)


@given(networks(), st.data())
def test_sum_of_independent_machines_composes(layers, data):
    """Theorem 2: R_{f+g} = R_g R_f when f does not depend on g, and depth(f + g) ≤ depth f + depth g."""
    order = [layer for level in rv.Sum(layers).levels for layer in level]
    cut = data.draw(st.integers(0, len(order)))
    f, g = rv.Sum(order[:cut]), rv.Sum(order[cut:])
    assert not rv.depends(f, g)
    total = f + g
    x0 = random_point(total)
    in_f = f({name: value for name, value in x0.items() if name in f.parts})
    both = x0 | in_f
    in_g = g({name: value for name, value in both.items() if name in g.parts})
    assert_same_point(total(x0), both | in_g)
    assert total.depth <= f.depth + g.depth


@given(networks("abcd"), networks("efgh"))
def test_sum_of_mutually_independent_machines_adds(left, right):
    """Theorem 2: R_{f+g} = R_f + R_g - id, and depth(f + g) ≤ max(depth f, depth g)."""
    f, g = rv.Sum(left), rv.Sum(right)
    total = f + g
    x0 = random_point(total)
    parts = [{n: v for n, v in x0.items() if n in m.parts} for m in (f, g)]
    extended = [plus(minus(part), m(part), x0) for m, part in zip((f, g), parts, strict=True)]
    assert_same_point(total(x0), plus(*extended, minus(x0)))
    assert total.depth == max(f.depth, g.depth)


def test_sums_flatten_and_the_empty_sum_is_zero():
    f1, f2, f3, _, _ = the_papers_figure()
    assert (f1 + (f2 + f3)).layers == (f1, f2, f3)
    nothing = rv.Sum([])
    assert nothing.depth == 0
    assert nothing({}) == {}
    assert (nothing + f1).layers == (f1,)


def test_ten_thousand_layers_are_ordered_evaluated_and_searched_for_cycles():
    layers = [rv.Layer(torch.sin, reads=f"p{i}", writes=f"p{i + 1}") for i in range(10_000)]
    f = rv.Sum(reversed(layers))
    assert f.depth == 10_000
    h = f({"p0": torch.ones(1)})
    assert_close(h["p10000"], f.endofunction(h)["p10000"])
    with pytest.raises(rv.NotAMachine, match="f1 → p1 → f2 → p2"):
        rv.Sum([*layers, rv.Layer(torch.sin, reads="p10000", writes="p0")])


def test_a_cycle_is_named():
    layers = [layer("x1", "x2"), layer("x3", "x4"), layer("x2", "x6"), layer("x6", "x7"), layer("x4 x7", "x3")]
    with pytest.raises(rv.NotAMachine, match=r"in a cycle: f2 → x4 → f5 → x3 → f2$"):
        rv.Sum(layers)


# -- independence


def test_a_vanishing_composition_is_not_independence():
    f = rv.Layer(lambda x: x - 3, reads="x", writes="y")
    g = rv.Layer(lambda w: 3 + 0 * w, reads="w", writes="x")
    w = torch.ones(2)
    assert_close(f.endofunction(g.endofunction({"w": w}))["y"], torch.zeros(2))
    assert rv.depends(f, g)
    assert rv.depends(f, g, at=({"x": w}, {"w": w}))
    assert not rv.depends(g, f)


def test_a_layer_that_does_not_use_what_it_declares_does_not_depend_on_it():
    f = rv.Layer(lambda a, b: a + 0 * b, reads=("a", "b"), writes="c")
    g = rv.Layer(torch.sin, reads="a", writes="b")
    x = {"a": torch.ones(2), "b": torch.ones(2)}
    assert rv.depends(f, g)
    assert not rv.depends(f, g, at=(x, {"a": torch.ones(2)}))


def test_simplified_drops_false_dependencies_and_lowers_the_depth():
    f = rv.Layer(torch.sin, reads="a", writes="b") + rv.Layer(lambda a, b: a * 2 + 0 * b, reads=("a", "b"), writes="c")
    x0 = {"a": torch.randn(3)}
    g = f.simplified(at=f(x0))
    assert (f.depth, g.depth) == (2, 1)
    assert_close(g(x0), f(x0))
    assert g.simplified(at=g(x0)).layers == g.layers


# -- derivatives (Propositions 2 and 3, Theorem 3)


@given(networks())
def test_tangent_and_dual_resolvents_are_the_derivatives_of_the_resolvent(layers):
    f = rv.Sum(layers)
    x0, dx0, u0 = random_point(f), random_point(f), random_point(f)
    h, dh = torch.func.jvp(lambda x: f(x), (x0,), (dx0,))[:2]
    assert_same_point(f.tangent(h)(dx0), dh)
    _, pull = torch.func.vjp(lambda x: f(x), x0)[:2]
    assert_same_point(f.dual(h)(u0), pull(u0)[0])
    assert f.tangent(h).depth == f.dual(h).depth <= f.depth  # less where a chain starts with a constant layer


@given(networks())
def test_parameter_cotangents_are_autograds(layers):
    f = rv.Sum(layers)
    x0, u0 = random_point(f), random_point(f)
    h = f(x0)
    written = [name for name in f.parts if name not in f.inputs]
    seeds = [u0[name] for name in written]
    expected = torch.autograd.grad([h[name] for name in written], list(f.parameters()), seeds, materialize_grads=True)
    actual = f.parameter_cotangents(h, f.dual(h)(u0))
    names = [name for name, _ in f.named_parameters()]
    assert_equal([actual[name] for name in names], expected)


def test_the_cotangents_of_a_shared_parameter_add():
    shared = Mix(1, 1)
    f = rv.Layer(shared, reads="a", writes="b") + rv.Layer(shared, reads="b", writes="c")
    x0 = {"a": torch.randn(3, 2, dtype=f64)}
    h = f(x0)
    expected = torch.autograd.grad(h["c"].sum(), shared.weight, retain_graph=True)
    actual = f.parameter_cotangents(h, f.dual(h)({"c": torch.ones(3, 2, dtype=f64)}))
    assert_equal(list(actual.values()), expected)


def test_what_is_missing_in_a_tangent_costs_nothing():
    calls = []

    def counted(x):
        calls.append(1)
        return x.sin()

    f = rv.Layer(counted, reads="a", writes="b") + rv.Layer(torch.cos, reads="c", writes="d")
    h = f({"a": torch.ones(2), "c": torch.ones(2)})
    tangent = f.tangent(h)
    calls.clear()
    assert set(tangent({"c": torch.ones(2)})) == {"c", "d"}
    assert not calls


# -- depth


@given(networks())
def test_both_depth_sequences_end_at_the_resolvent(layers):
    """Theorem 1; the sweep evaluates each layer once, the iteration all of them at every step."""
    f = rv.Sum(layers)
    x0 = random_point(f)
    kinds: Any = {"sweep": len(layers), "iterate": len(layers) * f.depth}
    for kind, evaluations in kinds.items():
        steps = f.depth_sequence(x0, kind)
        assert len(steps) == f.depth + 1
        assert_same_point(steps[0].state, x0)
        assert_same_point(steps[-1].state, f(x0))
        assert sum(len(step.evaluated) for step in steps) == evaluations


@given(networks())
def test_every_step_of_a_depth_sequence_is_right_modulo_the_cofiltration(layers):
    """Definition 3: π_i h_i is the same for both lifted sequences, and final."""
    f = rv.Sum(layers)
    x0 = random_point(f)
    h, sweep, iterate = f(x0), f.depth_sequence(x0, "sweep"), f.depth_sequence(x0, "iterate")
    for kept, a, b in zip(f.cofiltration(), sweep, iterate, strict=True):
        for name in set(f.parts) - kept:
            assert_equal((a.state[name], b.state[name]), (h[name], h[name]))


@given(networks())
def test_levels_give_a_depth_cofiltration_and_its_quotients_one_of_the_dual(layers):
    """Definition 2 and Proposition 3."""
    f = rv.Sum(layers)
    h = f(random_point(f))
    chain = f.cofiltration()
    assert len(chain) == f.depth + 1
    assert rv.is_cofiltration(f, chain, at=h)
    everything = frozenset(f.parts)
    quotients = (*(everything - kept for kept in reversed(chain[:-1])), frozenset())
    assert rv.is_cofiltration(f.dual(h), quotients, at=random_point(f))
    assert not rv.is_cofiltration(f, (chain[0], *chain[2:]), at=h)


@given(cases())
def test_the_papers_chain_is_a_cofiltration_of_a_structured_machine(case):
    machine = case.machine
    y, z = case.points(2)
    chain = machine.cofiltration(*case.extent) if isinstance(machine, rv.RecurrentMachine) else machine.cofiltration()
    assert len(chain) == case.depth + 1
    assert rv.is_cofiltration(machine, chain, at={"y": y, "z": z})


def test_a_chain_that_is_too_short_is_no_cofiltration():
    machine = randomize(rv.DenseMachine((1, 1, 1), dtype=f64))
    y, z = torch.randn(2, 4, 3, dtype=f64)
    chain = machine.cofiltration()
    assert rv.is_cofiltration(machine, chain, at={"y": y, "z": z})
    for i in range(len(chain)):
        assert not rv.is_cofiltration(machine, chain[:i] + chain[i + 1 :], at={"y": y, "z": z})
    assert not rv.is_cofiltration(machine, (), at={"y": y, "z": z})


# -- nilpotent operators and functions of known depth


@given(st.integers(1, 6), st.integers(0, 2**16))
def test_a_nilpotent_operator_is_a_machine_in_any_basis(n, seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.diag((torch.rand(n - 1, generator=generator) > 0.4).to(f64), 1)
    basis, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=f64))
    f = rv.LinearMachine(1e-9 * basis @ blocks @ basis.mT)
    index = next(k for k in range(1, n + 1) if not torch.linalg.matrix_power(blocks, k).any())
    assert f.depth == index - 1
    assert [kernel.shape[1] for kernel in f.kernels()] == [
        n - int(torch.linalg.matrix_rank(torch.linalg.matrix_power(blocks, k))) for k in range(1, index + 1)
    ]
    x0 = torch.randn(3, n, generator=generator, dtype=f64)
    h = f(x0)
    assert_equal(h - f.endofunction(h), x0)
    assert f.dual.depth == f.depth


def test_the_sum_of_nilpotent_operators_with_vanishing_product_is_nilpotent():
    """Remark 2: L1 L2 = 0 bounds the depth of the sum by the sum of depths."""
    first = torch.zeros(5, 5, dtype=f64)
    second = first.clone()
    first[0, 1] = first[1, 2] = 1
    second[2, 3] = 1
    second[3, 4] = -2
    assert (second @ first == 0).all()
    depths = [rv.LinearMachine(matrix).depth for matrix in (first, second, first + second)]
    assert depths == [2, 2, 4]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n", [8, 20])
def test_depth_does_not_hang_on_the_scale_of_entries(n, dtype):
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(n, n, generator=generator, dtype=dtype).triu(1)
        f = rv.LinearMachine(matrix)
        assert f.depth == f.dual.depth == n - 1
    badly_scaled = torch.tensor([[0, 1e10, 0], [0, 0, 1e-10], [0, 0, 0]], dtype=dtype)
    assert rv.LinearMachine(badly_scaled).depth == 2
    assert rv.LinearMachine(torch.zeros(3, 3, dtype=dtype)).depth == 0


def test_an_operator_that_is_not_nilpotent_is_refused_with_evidence():
    matrix = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1e-4, 0, 0]], dtype=f64)
    with pytest.raises(
        rv.NotAMachine, match=r"its power 4 has entries up to 1.00e-04, \d.\de\+\d\d times what would be"
    ):
        rv.LinearMachine(matrix)
    for seed in range(20):
        S, D = torch.randn(2, 6, 6, dtype=f64, generator=torch.Generator().manual_seed(seed))
        with pytest.raises(rv.NotAMachine, match="not nilpotent"):
            rv.LinearMachine(100 * S @ torch.diag(0.1 * D[0]) @ torch.linalg.inv(S))
    with pytest.raises(ValueError, match=r"matrix must be square and of floating point, got \(2, 3\)"):
        rv.LinearMachine(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"x0 has shape \(5,\), the machine needs \(..., 3\)"):
        rv.LinearMachine(torch.zeros(3, 3))(torch.ones(5))


def test_a_function_of_known_depth_is_solved_by_its_depth_sequence():
    f = the_papers_figure()
    total = f[0] + f[1] + f[2] + f[3] + f[4]
    x0 = random_point(total)
    machine = rv.EndofunctionMachine(total.endofunction, depth=4)
    assert_same_point(machine(x0), total(x0))
    rv.verify(machine, x0)
    shallow = rv.EndofunctionMachine(total.endofunction, depth=3)
    with pytest.raises(rv.NotAMachine, match=r"f is not of depth 3 at x0: relative residual \d\.\d+e[-+]\d+ of h - x0"):
        rv.verify(shallow, x0)
    with pytest.raises(ValueError, match="depth must be an integer of at least 0, got -1"):
        rv.EndofunctionMachine(torch.sin, depth=-1)


def test_verify_sees_nan():
    machine = rv.EndofunctionMachine(lambda x: {"b": x["a"] * float("nan")}, depth=1)
    with pytest.raises(rv.NotAMachine, match="residual nan"):
        rv.verify(machine, {"a": torch.ones(2)})


def test_verify_sees_a_solution_that_depends_on_the_start():
    rv.verify(rv.EndofunctionMachine(torch.zeros_like, depth=0), torch.zeros(2))
    with pytest.raises(rv.NotAMachine, match="another start"):
        rv.verify(rv.EndofunctionMachine(lambda x: torch.where(x == 0, 0.0, 1.0), depth=0), torch.zeros(2))


# -- bridges


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
    if "some" not in name and "sequential" not in name:
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


class Negate(nn.Module):
    def forward(self, x):
        return x.neg_() + 1


def test_from_module_refuses_what_is_not_a_pure_function():
    with pytest.raises(ValueError, match="module works in place"):
        rv.Sum.from_module(nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), torch.randn(3, 2))
    example = torch.ones(3, 2)
    with pytest.raises(ValueError, match="writes to its input in place"):
        rv.Sum.from_module(Negate(), example)
    assert_close(example, torch.ones(3, 2))
    with pytest.raises(ValueError, match="not a pure function"):
        rv.Sum.from_module(nn.Sequential(nn.Dropout()), torch.randn(30, 2))
    with pytest.raises(ValueError, match="example has 2 tensors, Sequential takes input"):
        rv.Sum.from_module(nn.Sequential(nn.Tanh()), torch.randn(3), torch.randn(3))


class Sizes(nn.Module):
    def forward(self, x, unused):
        n = x.size(0) // 2
        return torch.cos(x[:n]) + torch.sin(torch.sin(x))[:n]


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


def test_integers_are_constants_of_the_derivatives():
    embedding = nn.Embedding(5, 2, dtype=f64)
    f = rv.Layer(embedding, reads="index", writes="x") + rv.Layer(torch.sin, reads="x", writes="y")
    h = f({"index": torch.tensor([1, 4])})
    u = f.dual(h)({"y": torch.ones(2, 2, dtype=f64)})
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


# -- modules and errors


@pytest.mark.unchecked
def test_a_sum_is_a_module_that_trains_and_compiles():
    f = rv.Sum.from_sequential(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))
    twin = rv.Sum.from_sequential(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))
    twin.load_state_dict(f.state_dict())
    x = torch.randn(32, 2)
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    assert_close(compiled({"x0": x}), twin({"x0": x}))
    optimizer = torch.optim.Adam(f.parameters(), 1e-2)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = (f({"x0": x})["x3"] - x.prod(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


x = torch.zeros(2, 3)
untyped: Any = rv
BAD = [
    (
        lambda: untyped.Layer(torch.sin, reads="a", writes="a"),
        rv.NotAMachine,
        "a layer that writes what it reads .*: a$",
    ),
    (
        lambda: untyped.Layer(torch.sin, reads=("a", "a"), writes="b"),
        ValueError,
        "reads must be a name or a tuple of different",
    ),
    (lambda: untyped.Layer(torch.sin, reads="a", writes=()), ValueError, "writes is empty"),
    (lambda: untyped.Layer(3, reads="a", writes="b"), TypeError, "module must be a module or a function, got 3"),
    (lambda: untyped.Layer(nn.ReLU(inplace=True), reads="a", writes="b"), ValueError, "module works in place"),
    (lambda: sine.parameter_cotangents({"a": x}, {"c": x}), ValueError, "u has the unknown part 'c'"),
    (lambda: untyped.Sum([torch.nn.Tanh()]), TypeError, "a sum is of layers and sums, got Tanh"),
    (lambda: sine({"c": x, "a": x}), ValueError, "x0 has the unknown part 'c': the machine has a, b"),
    (lambda: sine({}), ValueError, "f1 reads a, which the point lacks: it has no parts"),
    (lambda: sine({"a": x, "b": x[:1]}), ValueError, r"f1 writes b of shape \(2, 3\), which does not add to \(1, 3\)"),
    (lambda: pair({"a": x}), ValueError, "f1 writes b, c, but its module returned Tensor"),
    (lambda: wrong({"a": x}), ValueError, "mine writes b, c, but its module returned 3 values"),
    (lambda: number({"a": x}), TypeError, "f1 must write a tensor to b, its module returned int"),
    (lambda: sine.depth_sequence({"a": x}, "jump"), ValueError, "kind='jump' is unknown: use 'sweep' or 'iterate'"),
]
sine: Any = rv.Layer(torch.sin, reads="a", writes="b")
pair = rv.Layer(torch.sin, reads="a", writes=("b", "c"))
wrong = rv.Layer(lambda a: (a, a, a), reads="a", writes=("b", "c"), name="mine")
number = untyped.Layer(lambda a: 3, reads="a", writes="b")


@pytest.mark.unchecked
@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_errors_name_the_layer_and_the_part(call, error, message):
    with pytest.raises(error, match=message):
        call()
