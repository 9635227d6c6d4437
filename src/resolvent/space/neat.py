"""Networks of neat-python, from the JSON that it exports, and back.

Its sigmoid is σ(5z), its tanh tanh(2.5z): the factors go into the weights and biases of a node, and come out again. A
node's response goes into its weights, and is 1 on the way back.
"""

import json
import os
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .named import NamedNetwork, from_edges, to_edges


def _sin(z: Tensor) -> Tensor:
    return (5 * z).clamp(-60, 60).sin()


def _gauss(z: Tensor) -> Tensor:
    return (-5 * z.clamp(-3.4, 3.4) ** 2).exp()


def _lelu(z: Tensor) -> Tensor:
    return torch.where(z > 0, z, 0.005 * z)


def _softplus(z: Tensor) -> Tensor:
    return 0.2 * (5 * z).clamp(-60, 60).exp().log1p()


def _clamped(z: Tensor) -> Tensor:
    return z.clamp(-1, 1)


def _log(z: Tensor) -> Tensor:
    return z.clamp(min=1e-7).log()


def _exp(z: Tensor) -> Tensor:
    return z.clamp(-60, 60).exp()


def _hat(z: Tensor) -> Tensor:
    return (1 - z.abs()).clamp(min=0)


def _square(z: Tensor) -> Tensor:
    return z * z


def _cube(z: Tensor) -> Tensor:
    return z * z * z


FACTORS = {"sigmoid": 5.0, "tanh": 2.5}
ACTIVATIONS: dict[str, Any] = {name: name for name in ("identity", "relu", "elu", "selu", "sigmoid", "tanh")}
ACTIVATIONS |= dict(sin=_sin, gauss=_gauss, lelu=_lelu, softplus=_softplus, clamped=_clamped, log=_log, exp=_exp)
ACTIVATIONS |= dict(abs=torch.abs, hat=_hat, square=_square, cube=_cube)
NAMES = {ours: theirs for theirs, ours in ACTIVATIONS.items()}


def from_neat(
    source: Any, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> NamedNetwork:
    """The network of `neat.export.export_network_json`: its text, its file, or what it parses to.

    Feed-forward and recurrent ones, with aggregation "sum". Of a recurrent one, points are (batch, time, inputs).
    """
    try:
        return _network(_parsed(source), dtype, device)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"source is not what neat.export.export_network_json gives: {error!r}") from None


def _network(fields: Mapping[str, Any], dtype: Any, device: Any) -> NamedNetwork:
    kind, recurrent = fields["network_type"], fields["network_type"] == "recurrent"
    if kind not in ("feedforward", "recurrent"):
        raise ValueError(f"network_type {kind!r} is none that a machine computes: feedforward or recurrent")
    inputs, outputs = ([str(key) for key in fields["topology"][f"{side}_keys"]] for side in ("input", "output"))
    nodes: dict[str, Any] = {str(node["id"]): node for node in fields["nodes"] if str(node["id"]) not in inputs}
    rows: list[dict[str, Any]] = [dict(source=None, target=name, weight=None) for name in inputs]
    for name in {**nodes, **dict.fromkeys(outputs)}:
        node = nodes.get(name)  # an output that nothing leads to is 0
        row = dict(source=None, target=name, weight=None, activation="identity", bias=0.0)
        if node is not None:
            function = node["activation"]["name"]
            if function not in ACTIVATIONS or node["activation"].get("custom"):
                raise ValueError(f"node {name} has activation {function!r}: known are {', '.join(ACTIVATIONS)}")
            if node["aggregation"]["name"] != "sum":
                raise ValueError(f"node {name} has aggregation {node['aggregation']['name']!r}: a machine's is sum")
            if not isfinite(node["bias"]):
                raise ValueError(f"node {name} has bias {node['bias']}: a finite number is needed")
            row |= dict(activation=ACTIVATIONS[function], bias=FACTORS.get(function, 1.0) * node["bias"])
        rows.append(row)
    for edge in fields["connections"]:
        source, target = str(edge["from"]), str(edge["to"])
        if edge.get("enabled", True) and target in nodes and (source in nodes or source in inputs):
            node = nodes[target]
            factor = FACTORS.get(node["activation"]["name"], 1.0) * node.get("response", 1.0)
            row = dict(source=source, target=target, weight=factor * edge["weight"])
            rows.append(row | dict(lag=int(source not in inputs)) if recurrent else row)
    if recurrent and not any(row.get("lag") for row in rows):  # so that its points have time, too
        raise ValueError("the recurrent network has no edge between its nodes: export it as a feed-forward one")
    return from_edges(rows, inputs=inputs, outputs=outputs, dtype=dtype, device=device)


def to_neat(network: NamedNetwork) -> dict[str, Any]:
    """The network as the same JSON says it: a dictionary for `json.dump`, whose nodes need names that are integers."""
    if not isinstance(network, NamedNetwork):
        raise TypeError(f"network must be a NamedNetwork, got {type(network).__name__}: from_edges(to_edges(machine))")
    inputs, outputs = ([_key(name) for name in names] for names in (network.inputs, network.outputs))
    recurrent = network.machine.connections.lags > 0
    nodes: dict[int, Any] = {key: _node(key, "input", "identity", "none", 0.0) for key in inputs}
    connections = []
    for row in to_edges(network):
        function = row["activation"] if isinstance(row["activation"], str) else row["activation"].function
        if function not in NAMES:
            raise ValueError(f"activation {row['activation']} of node {row['target']} is none of neat-python's")
        name = NAMES[function]
        target, factor = _key(row["target"]), FACTORS.get(name, 1.0)
        side = "output" if target in outputs else "hidden"
        nodes[target] = _node(target, side, name, "sum", row["bias"] / factor)
        if row["weight"] is not None:
            if recurrent and row["lag"] != int(row["source"] not in network.inputs):
                raise ValueError("neat-python's recurrent networks read inputs at lag 0 and all else at lag 1")
            weight = row["weight"] / factor
            connections.append({"from": _key(row["source"]), "to": target, "weight": weight, "enabled": True})
    topology = dict(num_inputs=len(inputs), num_outputs=len(outputs), input_keys=inputs, output_keys=outputs)
    head = dict(format_version="1.0", network_type="recurrent" if recurrent else "feedforward", metadata={})
    return head | dict(topology=topology, nodes=list(nodes.values()), connections=connections)


def _node(key: int, side: str, activation: str, aggregation: str, bias: float) -> dict[str, Any]:
    functions = {
        kind: dict(name=n, custom=False) for kind, n in (("activation", activation), ("aggregation", aggregation))
    }
    return dict(id=key, type=side, **functions, bias=bias, response=1.0)


def _key(name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise ValueError(f"node {name!r} has no number for a name: neat-python's nodes do") from None


def _parsed(source: Any) -> Mapping[str, Any]:
    if isinstance(source, os.PathLike) or (isinstance(source, str) and not source.lstrip().startswith("{")):
        source = Path(source).read_text(encoding="utf-8")
    try:
        fields = json.loads(source) if isinstance(source, str) else source
    except ValueError as error:
        raise ValueError(f"source is not JSON: {error}") from None
    needed = {"network_type", "topology", "nodes", "connections"}
    if not isinstance(fields, Mapping) or not needed <= set(fields):
        raise ValueError(
            f"source is not what neat.export.export_network_json gives: it needs {', '.join(sorted(needed))}"
        )
    return fields
