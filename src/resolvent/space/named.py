"""Machines from lists of edges between named nodes, and back: the same function on one side, trainable on the other."""

import csv
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..algebra.order import Edge, levels
from ..machines.dense import DenseMachine
from ..machines.recurrent import RecurrentMachine
from ..machines.structured import StructuredMachine
from ..structure.activation import ACTIVATIONS, Activation, ActivationLike, as_activation
from .made import in_one_layout, kind_of

MOST_LAGS = 2**16


class Node(NamedTuple):
    """What a node is besides its edges."""

    activation: Activation
    bias: float


class NamedNetwork(nn.Module):
    """A machine whose units have names, as a function from its inputs to its outputs, each in the order of their names.

    W is packed: what is read of it are the edges, which are trained, and biases. A unit is
    z[..., net.nodes.index(name)] of the machine's z, in `net.solve(x)`.
    """

    def __init__(self, machine: StructuredMachine, nodes: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]):
        super().__init__()
        self.machine, self.nodes, self.inputs, self.outputs = machine, tuple(nodes), tuple(inputs), tuple(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.solve(x)[1][..., [self.nodes.index(name) for name in self.outputs]]

    def solve(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The (y, z) of the machine."""
        if not isinstance(x, Tensor) or x.ndim < 1 or x.shape[-1] != len(self.inputs):
            came = f"has shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"is a {type(x).__name__}"
            raise ValueError(f"x {came}, the network takes {len(self.inputs)} inputs: {', '.join(self.inputs)}")
        x = x[..., [self.inputs.index(name) for name in self.nodes[: len(self.inputs)]]]
        bias: Any = self.machine.bias
        bias = F.pad(bias[len(self.inputs) :], (len(self.inputs), 0))  # inputs have none, and get no gradient
        return self.machine.resolvent((self.machine.operator.extended(x, bias), None))

    def extra_repr(self) -> str:
        return f"inputs={self.inputs}, outputs={self.outputs}"


def from_edges(
    table: Any,
    *,
    inputs: Iterable[Any] | None = None,
    outputs: Iterable[Any] | None = None,
    activation: ActivationLike = "tanh",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> NamedNetwork:
    """The network with these edges, each a parameter.

    `table` is a data frame, a CSV file or an iterable of mappings with columns source, target and weight and, where
    they are known, activation and bias (of the target) and lag, which makes it recurrent; a row without source and
    weight says what its target is. Or it is a networkx graph with weight and lag on its edges, and activation and bias
    on its nodes. Unless they are named, inputs are the nodes that nothing feeds, without a bias or an activation, and
    outputs those that feed nothing. Nodes without an activation have the given one, and outputs the identity.

    >>> net = from_edges([dict(source="x", target="h", weight=2.0), dict(source="h", target="out", weight=0.5)])
    >>> net(torch.tensor([[1.0]]))
    tensor([[0.4820]], grad_fn=<IndexBackward0>)
    """
    edges, known = _read(table)
    names = list(dict.fromkeys([*(n for s, t, _ in edges for n in (s, t)), *known]))
    level = _levels(edges, names)
    fed, feeding = {target for _, target, _ in edges}, {source for source, _, _ in edges}
    passes_on = ({}, {"activation": "identity"}, {"bias": 0.0}, {"activation": "identity", "bias": 0.0})
    free = [n for n in names if n not in fed and known.get(n, {}) in passes_on]
    inputs = free if inputs is None else _named("inputs", inputs, names)
    outputs = (
        [n for n in names if n not in feeding and n not in inputs]
        if outputs is None
        else _named("outputs", outputs, names)
    )
    for name in inputs:
        if name in fed:
            raise ValueError(f"input {name!r} is the target of an edge: inputs are what nothing feeds")
    for name in names:
        if name not in fed and name not in inputs and known.get(name, {}) in passes_on and feeding & {name}:
            raise ValueError(f"node {name!r} is fed by nothing and is none of the inputs, {', '.join(inputs)}")
    if not inputs or not outputs:
        raise ValueError("the edges leave no input or no output: name them with inputs=… and outputs=…")
    identity, other = ACTIVATIONS["identity"], as_activation(activation)
    nodes = {n: Node(identity if n in inputs or n in outputs else other, 0.0) for n in names}
    made: dict[Any, Activation] = {}  # of a function of one's own, one for all its nodes
    for name, given in known.items():
        if "activation" in given:
            function = given["activation"]
            made[function] = made.get(function) or as_activation(function)
            given = given | {"activation": made[function]}
        nodes[name] = nodes[name]._replace(**given)
    for name in inputs:
        if nodes[name] != Node(identity, 0.0):
            raise ValueError(f"input {name!r} has an activation or a bias: an input is what comes")
    return _network(edges, _blocks(edges, level, nodes, inputs), nodes, inputs, outputs, dtype, device)


def to_edges(network: Any) -> list[dict[str, Any]]:
    """The edges of a `NamedNetwork`, or of a dense or recurrent machine, whose units are then "0", "1", …

    Rows for `from_edges`, to which inputs and outputs are named anew; bias and activation are those of the target.
    Where the first block of a machine does more than to pass on what comes, its units have inputs of their own, "x0",
    "x1", …
    """
    named = isinstance(network, NamedNetwork)
    machine = network.machine if named else network
    if kind_of(machine).kind == "conv":
        raise TypeError("a convolution has a kernel for each edge, not a weight: only dense and recurrent machines do")
    names = network.nodes if named else [str(i) for i in range(machine.partition.total)]
    W, read = in_one_layout(machine)[..., 0].cpu(), machine.connections.expand(machine.partition)
    bias = torch.zeros(len(names)) if machine.bias is None else machine.bias.detach().cpu()
    sigma = [a for a, size in zip(machine.activation.blocks, machine.partition.sizes, strict=True) for _ in range(size)]
    lags = machine.connections.lags > 0

    def row(source: str | None, to: int, weight: float | None, lag: int = 0) -> dict[str, Any]:
        row = dict(source=source, target=names[to], weight=weight, activation=exported(sigma[to]), bias=bias[to].item())
        return row | dict(lag=lag) if lags and source is not None else row

    rows = [row(names[j], i, W[lag, i, j].item(), lag) for lag, i, j in read.nonzero().tolist()]
    fed, first = read.any(0).any(1), len(network.inputs) if named else machine.partition.sizes[0]
    if not named and (fed[:first].any() or bias[:first].any() or sigma[0] is not ACTIVATIONS["identity"]):
        rows += [row(f"x{i}", i, 1.0) for i in range(first)]
    said = {name for row in rows for name in (row["source"], row["target"])}
    alone = (~fed).nonzero().flatten().tolist()
    return rows + [row(None, i, None) for i in alone if i >= first or names[i] not in said]


def exported(activation: Activation) -> Any:
    """By name, where that says which function it is."""
    return activation.name if ACTIVATIONS.get(activation.name) is activation else activation


def _named(what: str, given: Iterable[Any], names: Sequence[str]) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{what} must be a list of names, got {given!r}")
    chosen = [_name(name) for name in given]
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"{what} has a name twice: {', '.join(chosen)}")
    for name in chosen:
        if name not in names:
            raise ValueError(f"{what} has {name!r}, which is no node of the edges: they have {', '.join(names)}")
    return chosen


def _name(value: Any) -> str:
    """As text; pandas makes floats of whole numbers where one is missing."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


Edges = list[tuple[str, str, tuple[int, float]]]


def _read(table: Any) -> tuple[Edges, dict[str, dict[str, Any]]]:
    """(source, target, (lag, weight)), and what is known of nodes."""
    known: dict[str, dict[str, Any]] = {}
    edges: Edges = []
    seen = set()
    for i, row in enumerate(_rows(table), 1):
        if not isinstance(row, Mapping) or not {"source", "target", "weight"} <= set(row):
            columns = ", ".join(map(str, row)) if isinstance(row, Mapping) else type(row).__name__
            raise ValueError(f"row {i} of the edges needs source, target and weight, it has {columns}")
        alone = _missing(row["source"]) and _missing(row["weight"])
        for column in ("target",) if alone else ("source", "target"):
            if _missing(row[column]):
                raise ValueError(f"row {i} of the edges has no {column}")
        source, target = _name(row["source"]), _name(row["target"])
        given: dict[str, Any] = {} if _missing(row.get("bias")) else {"bias": _number(i, "bias", row["bias"], None)}
        given |= {} if _missing(row.get("activation")) else {"activation": row["activation"]}
        for key, value in given.items():
            if known.setdefault(target, {}).setdefault(key, value) != value:
                raise ValueError(
                    f"row {i} of the edges has {key} {value!r} for {target!r}, a row before has another one"
                )
        if alone:
            known.setdefault(target, {})
            continue
        lag = _number(i, "lag", row.get("lag"), 0.0)
        if lag != int(lag) or not 0 <= lag < MOST_LAGS:
            raise ValueError(
                f"row {i} of the edges has lag {row['lag']!r}: a whole number from 0 to {MOST_LAGS - 1} is needed"
            )
        if (source, target, lag) in seen:
            raise ValueError(f"row {i} of the edges has {source!r} → {target!r} a second time")
        seen.add((source, target, lag))
        edges.append((source, target, (int(lag), _number(i, "weight", row["weight"], None))))
    return edges, known


def _rows(table: Any) -> list[Any]:
    if hasattr(table, "nodes") and hasattr(table, "edges"):  # networkx
        if not table.is_directed():
            raise ValueError("table is a graph without directions: an edge of a network has one")
        nodes = [{"source": None, "weight": None, **given, "target": name} for name, given in table.nodes(data=True)]
        return nodes + [{"weight": None, **given, "source": s, "target": t} for s, t, given in table.edges(data=True)]
    if isinstance(table, str | os.PathLike):
        with Path(table).open(newline="", encoding="utf-8-sig") as file:
            rows = csv.reader(file, skipinitialspace=True)
            head = [name.strip() for name in next(rows, [])]
            return [dict(zip(head, (cell.strip() for cell in row), strict=False)) for row in rows if row]
    return table.to_dict("records") if hasattr(table, "to_dict") else list(table)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value) or value != value


def _number(i: int, column: str, value: Any, default: float | None) -> float:
    if _missing(value) and default is not None:
        return default
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float("nan")
    if not isfinite(number):
        raise ValueError(f"row {i} of the edges has {column} {value!r}: a finite number is needed")
    return number


def _network(
    edges: Edges,
    blocks: list[list[str]],
    nodes: Mapping[str, Node],
    inputs: list[str],
    outputs: list[str],
    dtype: Any,
    device: Any,
) -> NamedNetwork:
    order = [name for block in blocks for name in block]
    place, lags = {name: i for i, name in enumerate(order)}, max((lag for *_, (lag, _) in edges), default=0)
    owner = {name: i for i, block in enumerate(blocks) for name in block}
    matrices = torch.zeros(lags + 1, len(blocks), len(blocks), dtype=torch.bool)
    W = torch.zeros(lags + 1, len(order), len(order), dtype=torch.float64)
    for source, target, (lag, weight) in edges:
        matrices[lag, owner[target], owner[source]] = True
        W[lag, place[target], place[source]] = weight
    sizes, sigma = [len(block) for block in blocks], [nodes[block[0]].activation for block in blocks]
    make: Callable[..., Any] = RecurrentMachine if lags else DenseMachine
    options: Any = dict(connections=matrices if lags else matrices[0], packed=True, device="meta", dtype=dtype)
    machine = make(sizes, sigma, **options | (dict(lags=lags) if lags else {}))
    like = torch.empty(0, device=device, dtype=dtype)
    bias = torch.tensor([nodes[name].bias for name in order], dtype=torch.float64)
    state = dict(entries=machine.system.packed_weight(W if lags else W[0]), bias=bias)
    machine.load_state_dict({name: x.to(like) for name, x in state.items()}, assign=True)
    machine.requires_grad_(True)
    return NamedNetwork(machine, order, inputs, outputs)


def _levels(edges: Edges, names: Iterable[str]) -> dict[str, int]:
    """One more than the last one that a node reads in the same step."""
    level = dict.fromkeys(names, 0)
    now = [Edge(f"W[{t}, {s}]", (s,), (t,)) for s, t, (lag, _) in edges if not lag]
    for i, members in enumerate(levels(now), 1):
        for edge in members:
            level[now[edge].writes[0]] = i
    return level


def _blocks(
    edges: Edges, level: Mapping[str, int], nodes: Mapping[str, Node], inputs: Iterable[str]
) -> list[list[str]]:
    """Inputs first, then level after level; units that are fed by the same ones and feed the same ones share a block.

    So a block is read as a whole, and W has no more entries than there are edges.
    """
    fed: dict[str, set] = {name: set() for name in nodes}
    feeds: dict[str, set] = {name: set() for name in nodes}
    for source, target, (lag, _) in edges:
        fed[target].add((source, lag))
        feeds[source].add((target, lag))
    first = set(inputs)
    activations = list(dict.fromkeys(node.activation for node in nodes.values()))
    sigma = {name: activations.index(node.activation) for name, node in nodes.items()}
    places = {name: i for i, name in enumerate(nodes)}

    def key(name: str) -> tuple:
        return name not in first, level[name], sigma[name], sorted(fed[name]), sorted(feeds[name])

    ordered = sorted(nodes, key=lambda name: (*key(name), places[name]))
    return [list(block) for _, block in groupby(ordered, key)]
