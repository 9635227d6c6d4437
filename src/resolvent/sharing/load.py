"""`load`: a folder that `save` wrote, as the machine it specifies."""

import os
from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from ..algebra.sum import Layer, Sum
from ..files import folder as _folder
from ..machines.kinds import KINDS
from ..machines.structured import StructuredMachine
from ..structure.partition import integers

SHARED = frozenset({"kind", "sizes", "activation", "connections", "bias"})


def load(folder: str | os.PathLike, *, device: torch.device | str | int = "cpu") -> StructuredMachine | Sum:
    """The machine that `save` wrote to the folder, bit for bit.

    Nothing is executed: the specification says which of the library's machines it is, with which of its activations.
    """
    specification, path = _folder.read(folder)
    if specification.get("kind") != "sum":
        return _machines([("", specification)], path, device)[0]
    _check_fields("a sum", specification, frozenset({"kind", "parts", "machines", "layers"}))
    machines, layers, parts = (specification[field] for field in ("machines", "layers", "parts"))
    if not all(isinstance(x, list) for x in (machines, layers, parts)) or not all(isinstance(p, str) for p in parts):
        raise ValueError("machines, layers and parts of a sum must be lists, and parts names")
    built = _machines([(f"{i}.", machine) for i, machine in enumerate(machines)], path, device)
    return Sum([_layer(layer, built) for layer in layers], parts=parts)


def _layer(layer: Any, machines: list[StructuredMachine]) -> Layer:
    _check_fields("a layer", layer, frozenset({"machine", "reads", "writes", "name"}))
    if not isinstance(layer["reads"], list):
        raise ValueError(f"a layer's reads must be a list of parts, got {layer['reads']!r}")
    if not isinstance(layer["name"], str | None):
        raise ValueError(f"a layer's name must be a string or null, got {layer['name']!r}")
    index = layer["machine"]
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(machines):
        raise ValueError(f"a layer names machine {index!r}, the sum has {len(machines)}")
    return Layer(machines[index], reads=layer["reads"], writes=layer["writes"], name=layer["name"])


def _machines(named: list[tuple[str, Any]], path: Any, device: Any) -> list[Any]:
    """All machines of one file, whose tensors are looked at before any machine of that size is made."""
    shapes: dict[str, tuple[int, ...]] = {}
    for prefix, machine in named:
        shapes |= {prefix + name: shape for name, shape in _shapes(machine).items()}
    tensors = _folder.tensors(path, shapes, device)
    built = []
    for prefix, specification in named:
        arguments = dict(specification)
        if arguments["bias"] and tensors[f"{prefix}bias"].dtype != tensors[f"{prefix}weight"].dtype:
            raise ValueError(f"{path} has a weight and a bias of different types")
        cls, _ = KINDS[arguments.pop("kind")]
        machine = cls(device="meta", dtype=tensors[f"{prefix}weight"].dtype, **arguments)
        machine.load_state_dict({name: tensors[prefix + name] for name in machine.state_dict()}, assign=True)
        built.append(machine.requires_grad_(True))
    return built


def _shapes(specification: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of weight and bias, from a specification whose fields are all there and of the right kind."""
    kind = specification.get("kind") if isinstance(specification, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown: this library reads {', '.join(KINDS)} and sum")
    _check_fields(f"a {kind} machine", specification, SHARED | KINDS[kind][1])
    for field, expected in (("activation", str), ("padding", list)):
        value = specification.get(field, [])
        if not isinstance(value, list) or not all(isinstance(entry, expected) for entry in value):
            raise ValueError(f"{field} must be a list with one entry for each {'block' if expected is str else 'axis'}")
    if not isinstance(specification["bias"], bool):
        raise ValueError(f"bias must be true or false, got {specification['bias']!r}")
    n = sum(integers("sizes", specification["sizes"]))
    shape = (n, n)
    if kind == "conv":
        shape = (n, n, *integers("kernel_size", specification["kernel_size"]))
    elif kind == "recurrent":
        (lags,) = integers("lags", [specification["lags"]], minimum=0)
        shape = (lags + 1, n, n)
    if prod(shape) >= 2**48:
        raise ValueError(f"a weight of shape {shape} is larger than any file")
    return {"weight": shape} | ({"bias": (n,)} if specification["bias"] else {})


def _check_fields(what: str, fields: Any, expected: frozenset[str]) -> None:
    if not isinstance(fields, Mapping):
        raise ValueError(f"{what} must be an object, got {fields!r}")
    for wrong, problem in ((set(fields) - expected, "has unknown"), (expected - set(fields), "lacks")):
        if wrong:
            raise ValueError(
                f"{what} {problem} fields {', '.join(sorted(wrong))}: it has {', '.join(sorted(expected))}"
            )
