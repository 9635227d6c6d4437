"""Layers, sums, their order, independence and derivatives: the first half of the paper."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from networks import Mix, assert_same_point, layer, longest_path, minus, networks, plus, random_point, the_papers_figure
from tolerance import assert_equal
from torch import nn
from torch.testing import assert_close

import resolvent as rv

f64 = torch.float64


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
    layers = [layer("x1", "x2"), layer("x3", "x4"), layer("x2", "x6"), layer("x6", "x7"), layer("x1 x4 x7", "x3")]
    with pytest.raises(rv.NotAMachine, match=r"in a cycle: f2 → x4 → f5 → x3 → f2$"):
        rv.Sum(layers)


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


@given(networks())
def test_tangent_and_dual_resolvents_are_the_derivatives_of_the_resolvent(layers):
    f = rv.Sum(layers)
    x0, dx0, u0 = random_point(f), random_point(f), random_point(f)
    h, dh = torch.func.jvp(lambda x: f(x), (x0,), (dx0,))[:2]
    assert_same_point(f.tangent(h).resolvent(dx0), dh)
    _, pull = torch.func.vjp(lambda x: f(x), x0)[:2]
    assert_same_point(f.dual(h).resolvent(u0), pull(u0)[0])
    assert f.tangent(h).depth == f.dual(h).depth <= f.depth  # less where a chain starts with a constant layer


@given(networks())
def test_parameter_cotangents_are_autograds(layers):
    f = rv.Sum(layers)
    x0, u0 = random_point(f), random_point(f)
    h = f(x0)
    written = [name for name in f.parts if name not in f.inputs]
    seeds = [u0[name] for name in written]
    expected = torch.autograd.grad([h[name] for name in written], list(f.parameters()), seeds, materialize_grads=True)
    actual = f.parameter_cotangents(h, f.dual(h).resolvent(u0))
    names = [name for name, _ in f.named_parameters()]
    assert_equal([actual[name] for name in names], expected)


def test_the_cotangents_of_a_shared_parameter_add():
    shared = Mix(1, 1)
    f = rv.Layer(shared, reads="a", writes="b") + rv.Layer(shared, reads="b", writes="c")
    x0 = {"a": torch.randn(3, 2, dtype=f64)}
    h = f(x0)
    expected = torch.autograd.grad(h["c"].sum(), shared.weight, retain_graph=True)
    actual = f.parameter_cotangents(h, f.dual(h).resolvent({"c": torch.ones(3, 2, dtype=f64)}))
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
    assert set(tangent.resolvent({"c": torch.ones(2)})) == {"c", "d"}
    assert not calls


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
    (lambda: sine(x), TypeError, "x0 must be a dict of tensors by part, got Tensor"),
    (lambda: sine({}), ValueError, "f1 reads a, which the point lacks: it has no parts"),
    (lambda: sine({"a": x, "b": x[:1]}), ValueError, r"f1 writes b of shape \(2, 3\), which does not add to \(1, 3\)"),
    (lambda: pair({"a": x}), ValueError, "f1 writes b, c, but its module returned Tensor"),
    (lambda: wrong({"a": x}), ValueError, "mine writes b, c, but its module returned 3 values"),
    (lambda: number({"a": x}), TypeError, "f1 must write a tensor to b, its module returned int"),
    (
        lambda: sine.depth_sequence({"a": x}, kind="jump"),
        ValueError,
        "kind='jump' is unknown: use 'sweep' or 'iterate'",
    ),
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
