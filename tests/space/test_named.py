"""Machines from lists of edges compute what the edges say, train nothing else, and go back to the same list."""

import math
import re
from typing import Any

import networkx
import pandas as pd
import pytest
import torch
from cases import cases
from hypothesis import given
from hypothesis import strategies as st
from parts import f64
from tolerance import assert_equal

import resolvent as rv
from resolvent import space

FUNCTIONS = {"identity": lambda y: y, "tanh": math.tanh, "relu": lambda y: max(y, 0.0), "sin": math.sin}


@st.composite
def tables(draw, recurrent: bool = False) -> list[dict[str, Any]]:
    """Edges from nodes to later ones or, where they have a lag, to any; each node with its σ and bias."""
    count = draw(st.integers(2, 8))
    numbers = st.integers(-20, 20).map(lambda i: i / 16)
    nodes = [dict(activation=draw(st.sampled_from([*FUNCTIONS])), bias=draw(numbers)) for _ in range(count)]
    rows = []
    for target in range(1, count):
        for source in range(count):
            for lag in range(2 if recurrent else 1):
                if (source < target if lag == 0 else source > 0) and draw(st.booleans()):
                    row = dict(source=f"n{source}", target=f"n{target}", weight=draw(numbers), **nodes[target])
                    rows.append(row | dict(lag=lag) if recurrent else row)
    fed = {row["target"] for row in rows}
    rows += [
        dict(source=None, target=f"n{i}", weight=None, **n) for i, n in enumerate(nodes) if i and f"n{i}" not in fed
    ]
    last = dict(source="n0", target="out", weight=1.0, activation="identity", bias=0.0)
    return [*rows, last | dict(lag=0) if recurrent else last]


def computed(rows: list[dict[str, Any]], xs: list[float]) -> list[dict[str, float]]:
    """Node after node, step after step, for one input n0."""
    order = sorted({row["target"] for row in rows}, key=lambda name: (name == "out", name))
    nodes = {row["target"]: (FUNCTIONS[row["activation"]], row["bias"]) for row in rows}
    past: list[dict[str, float]] = []
    for x in xs:
        now = {"n0": x}
        for name in order:
            y = nodes[name][1]
            for row in rows:
                if row["target"] == name and row["source"] is not None:
                    lag = row.get("lag", 0)
                    before = now if lag == 0 else past[-lag] if lag <= len(past) else {}
                    y += row["weight"] * before.get(row["source"], 0.0)
            now[name] = nodes[name][0](y)
        past.append(now)
    return past


@given(st.booleans().flatmap(lambda recurrent: tables(recurrent)), st.lists(st.floats(-2, 2), min_size=1, max_size=4))
def test_a_list_of_edges_is_the_machine_that_computes_them(rows, xs):
    net = space.from_edges(rows, inputs=["n0"], **f64)
    edges = [row for row in rows if row["source"] is not None]
    assert net.machine.entries.numel() == len(edges)
    x = torch.tensor(xs, **f64)[:, None]
    z = net.solve(x)[1]
    if isinstance(net.machine, rv.RecurrentMachine):
        expected = computed(rows, xs)
    else:
        expected = [computed(rows, [value])[0] for value in xs]
    for name in net.nodes:
        assert_equal(z[:, net.nodes.index(name)].detach(), torch.tensor([now[name] for now in expected], **f64))
    assert_equal(net(x), z[:, [net.nodes.index(name) for name in net.outputs]])


@given(st.booleans().flatmap(lambda recurrent: tables(recurrent)))
def test_edges_go_in_and_come_out(rows):
    net = space.from_edges(rows, inputs=["n0"], **f64)
    out = space.to_edges(net)

    def key(row):
        return {k: v for k, v in row.items() if k != "lag" or v}

    def sort(table):
        return sorted(
            (key(row) for row in table), key=lambda row: (str(row["source"]), row["target"], row.get("lag", 0))
        )

    assert sort(out) == sort(rows)
    again = space.from_edges(out, inputs=net.inputs, outputs=net.outputs, **f64)
    x = torch.randn(3, 1, **f64)
    assert_equal(again(x), net(x))


def test_a_perceptron_as_a_list_of_edges_has_its_blocks():
    machine: Any = rv.DenseMachine((2, 4, 3), ["identity", "tanh", "identity"], connections="sequential", **f64)
    with torch.no_grad():
        machine.bias[2:].normal_()
    net = space.from_edges(space.to_edges(machine), **f64)
    assert net.machine.partition.sizes == (2, 4, 3)
    assert net.inputs == ("0", "1")
    assert net.machine.entries.numel() == 20
    x = torch.randn(5, 2, **f64)
    assert_equal(net(x), machine(x)[:, -3:])


@given(cases(kinds=("dense", "recurrent")))
def test_any_machine_is_a_list_of_edges(case):
    """Of units with inputs of their own, where the first block does more than to pass on what comes."""
    machine: Any = case.machine
    before: Any = machine.weight.clone(), None if machine.bias is None else machine.bias.clone()
    rows = space.to_edges(machine)
    first, count = machine.partition.sizes[0], machine.partition.total
    inputs = [f"x{i}" for i in range(first)] if any(r["source"] == "x0" for r in rows) else [*map(str, range(first))]
    net = space.from_edges(rows, inputs=inputs, outputs=[str(i) for i in range(count)], **f64)
    if machine.connections.lags and isinstance(net.machine, rv.DenseMachine):
        return  # no edge has a lag: then time is one more axis of the batch
    x = torch.randn(case.shape(first), **f64)
    assert_equal(net(x).detach(), machine(x).detach())
    assert torch.equal(machine.weight, before[0])
    assert machine.bias is None or torch.equal(machine.bias, before[1])


def test_training_moves_the_edges_and_adds_none():
    rows = [dict(source="a", target="h", weight=0.5), dict(source="b", target="o", weight=1.0)]
    rows += [dict(source="h", target="o", weight=-1.0)]
    net = space.from_edges(rows, **f64)
    optimizer = torch.optim.Adam(net.parameters(), 0.1)
    for _ in range(3):
        net(torch.randn(8, 2, **f64)).square().mean().backward()
        optimizer.step()
    after = {(row["source"], row["target"]): row["weight"] for row in space.to_edges(net)}
    assert after.keys() == {("a", "h"), ("b", "o"), ("h", "o")}
    assert after["a", "h"] != 0.5
    bias: Any = net.machine.bias
    assert bias.tolist()[:2] == [0.0, 0.0]
    assert bias[2:].all()


def test_inputs_come_in_the_order_of_their_names():
    rows = [dict(source="b", target="o", weight=10.0), dict(source="a", target="o", weight=1.0)]
    rows += [dict(source="a", target="p", weight=1.0, activation="identity")]
    net = space.from_edges(rows, inputs=["a", "b"], outputs=["p", "o"])
    assert net(torch.tensor([2.0, 3.0])).tolist() == [2.0, 32.0]


def test_tables_of_all_kinds_are_read(tmp_path):
    rows = [dict(source="a", target="b", weight=2.0, activation="tanh", bias=0.5)]
    rows += [dict(source="b", target="c", weight=3.0, activation=None, bias=None)]
    frame = pd.DataFrame(rows)
    frame.to_csv(tmp_path / "edges.csv", index=False)
    graph = networkx.DiGraph()
    graph.add_node("b", activation="tanh", bias=0.5)
    graph.add_edge("a", "b", weight=2.0)
    graph.add_edge("b", "c", weight=3.0)
    expected = 3 * math.tanh(2 * 0.7 + 0.5)
    for table in (rows, frame, tmp_path / "edges.csv", str(tmp_path / "edges.csv"), graph, iter(rows)):
        net = space.from_edges(table, **f64)
        assert_equal(net(torch.tensor([0.7], **f64)).detach(), torch.tensor([expected], **f64))


def test_a_unit_of_a_bias_alone_is_no_input():
    rows = [edge(), dict(source="c", target="b", weight=2.0), dict(source=None, target="c", weight=None, bias=0.5)]
    net = space.from_edges(rows, activation="sin", **f64)
    assert net.inputs == ("a",)
    assert abs(net(torch.tensor([3.0], **f64)).item() - (3 + 2 * math.sin(0.5))) < 1e-12
    again = space.from_edges(space.to_edges(net), **f64)
    assert again.inputs == ("a",)
    with pytest.raises(ValueError, match="outputs has 'bb', which is no node of the edges: they have a, b, c"):
        space.from_edges(rows, outputs=["bb"])


def test_names_that_are_numbers_are_as_good_as_texts(tmp_path):
    rows = [dict(source=1, target=3, weight=1.0), dict(source=2, target=3, weight=2.0)]
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from([(1, 3, 1.0), (2, 3, 2.0)])
    floats = pd.DataFrame([*rows, dict(source=None, target=3, weight=None)])
    assert floats["source"].dtype == float
    for table in (rows, graph, floats):
        net = space.from_edges(table, inputs=iter([2, "1"]), outputs=[3])
        assert (net.inputs, net.outputs) == (("2", "1"), ("3",))
        assert net(torch.tensor([10.0, 1.0])).tolist() == [21.0]


def test_spaces_and_byte_order_marks_in_a_file_are_no_part_of_names(tmp_path):
    (tmp_path / "edges.csv").write_text("\ufeffsource, target ,weight\na, h ,1.5\n\nh,o , 2\n")
    net = space.from_edges(tmp_path / "edges.csv", activation="identity")
    assert (net.inputs, net.outputs) == (("a",), ("o",))
    assert net(torch.tensor([1.0])).tolist() == [3.0]


def test_nothing_is_drawn():
    state = torch.get_rng_state()
    space.from_edges([edge()])
    assert torch.equal(torch.get_rng_state(), state)


def edge(**fields: Any) -> dict[str, Any]:
    return dict(source="a", target="b", weight=1.0) | fields


BAD: dict[str, tuple[Any, str]] = {
    "no weight": (
        [dict(source="a", target="b")],
        "row 1 of the edges needs source, target and weight, it has source, t",
    ),
    "no rows": ([1], "row 1 of the edges needs source, target and weight, it has int"),
    "a word for a weight": ([edge(weight="much")], "row 1 of the edges has weight 'much': a finite number is needed"),
    "an infinite bias": ([edge(bias=math.inf)], "row 1 of the edges has bias inf: a finite number is needed"),
    "a broken lag": ([edge(lag=0.5)], "row 1 of the edges has lag 0.5: a whole number from 0 to 65535 is needed"),
    "a huge lag": ([edge(lag=1e300)], "row 1 of the edges has lag 1e+300: a whole number from 0 to 65535 is needed"),
    "no source": ([edge(source=None)], "row 1 of the edges has no source"),
    "no target": ([edge(), edge(source="b", target=math.nan)], "row 2 of the edges has no target"),
    "twice": ([edge(), edge(weight=2.0)], "row 2 of the edges has 'a' → 'b' a second time"),
    "two biases": (
        [edge(bias=1.0), edge(source="c", bias=2.0)],
        "row 2 of the edges has bias 2.0 for 'b', a row before",
    ),
    "a cycle": (
        [edge(), edge(source="b", target="c"), edge(source="c", target="b")],
        "the layers depend on each other in a cycle: W[c, b] → c → W[b, c] → b → W[c, b]",
    ),
    "no output": ([edge(lag=1), edge(source="b", target="b", lag=1)], "the edges leave no input or no output"),
    "another activation": ([edge(activation="cosh")], "activation 'cosh' is unknown: use one of identity"),
    "a graph without directions": (networkx.Graph([("a", "b")]), "table is a graph without directions"),
}


@pytest.mark.unchecked
@pytest.mark.parametrize("what", BAD)
def test_bad_edges_are_refused(what):
    table, message = BAD[what]
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        space.from_edges(table)


@pytest.mark.unchecked
def test_bad_names_and_points_are_refused():
    with pytest.raises(ValueError, match="input 'b' is the target of an edge"):
        space.from_edges([edge()], inputs=["b"])
    with pytest.raises(ValueError, match="node 'c' is fed by nothing and is none of the inputs, a"):
        space.from_edges([edge(), edge(source="c")], inputs=["a"])
    with pytest.raises(TypeError, match="inputs must be a list of names, got 'a'"):
        space.from_edges([edge()], inputs="a")
    graph = networkx.DiGraph([("a", "b", dict(weight=1.0))])
    graph.nodes["b"]["bias"] = math.nan
    assert space.from_edges(graph).machine.bias.tolist() == [0.0, 0.0]  # pyright: ignore  # NaN is missing
    graph.nodes["b"]["bias"] = math.inf
    with pytest.raises(ValueError, match="has bias inf: a finite number is needed"):
        space.from_edges(graph)
    with pytest.raises(ValueError, match="input 'a' has an activation or a bias"):
        space.from_edges([edge(), dict(source=None, target="a", weight=None, bias=1.0)], inputs=["a"])
    with pytest.raises(ValueError, match=r"x has shape \(3, 2\), the network takes 1 inputs: a"):
        space.from_edges([edge()])(torch.zeros(3, 2))
    with pytest.raises(TypeError, match="a convolution has a kernel for each edge"):
        space.to_edges(rv.ConvMachine((1, 2)))
