"""`load`: a folder that `save` wrote, as the machine it specifies."""

import os
from collections.abc import Mapping
from itertools import compress
from math import prod
from operator import mul
from typing import Any

import torch
from torch import Tensor

from ..algebra.sum import Layer, Sum
from ..files import folder as _folder
from ..machines.kinds import KINDS
from ..machines.structured import StructuredMachine
from ..structure.connections import connect
from ..structure.partition import Partition, integers

SHARED = frozenset({"kind", "sizes", "activation", "connections", "bias"})


def load(folder: str | os.PathLike, *, device: torch.device | str | int = "cpu") -> StructuredMachine | Sum:
    """The machine that `save` wrote to the folder, bit for bit.

    Nothing is executed: the specification says which of the library's machines it is, with which of its activations.
    """
    specification, path, version = _folder.read(folder)
    if specification.get("kind") != "sum":
        return _machines([("", specification)], path, version, device)[0]
    _check_fields("a sum", specification, frozenset({"kind", "parts", "machines", "layers"}))
    machines, layers, parts = (specification[field] for field in ("machines", "layers", "parts"))
    if not all(isinstance(x, list) for x in (machines, layers, parts)) or not all(isinstance(p, str) for p in parts):
        raise ValueError("machines, layers and parts of a sum must be lists, and parts names")
    built = _machines([(f"{i}.", machine) for i, machine in enumerate(machines)], path, version, device)
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


def _machines(named: list[tuple[str, Any]], path: Any, version: int, device: Any) -> list[Any]:
    """All machines of one file, whose tensors are looked at before any machine of that size is made."""
    shapes: dict[str, tuple[int, ...]] = {}
    for prefix, machine in named:
        shapes |= {prefix + name: shape for name, shape in _shapes(machine, version).items()}
    if version > 1:
        _check_memory([machine for _, machine in named], sum(prod(shape) for shape in shapes.values()))
    tensors = _folder.tensors(path, shapes, device)
    built = []
    for prefix, specification in named:
        arguments = dict(specification)
        if arguments["bias"] and tensors[f"{prefix}bias"].dtype != tensors[f"{prefix}weight"].dtype:
            raise ValueError(f"{path} has a weight and a bias of different types")
        cls, _ = KINDS[arguments.pop("kind")]
        machine = cls(device="meta", dtype=tensors[f"{prefix}weight"].dtype, **arguments)
        weight = tensors[f"{prefix}weight"]
        state = {machine.stored: weight if version == 1 else _in_memory(machine, weight)}
        state |= {"bias": tensors[f"{prefix}bias"]} if machine.bias is not None else {}
        machine.load_state_dict(state, assign=True)
        built.append(machine.requires_grad_(True))
    return built


def _in_memory(machine: StructuredMachine, weight: Tensor) -> Tensor:
    """The parameter, of what is read in the order of W in memory."""
    system = machine.system
    entries = torch.empty_like(weight).index_copy(0, system.places().argsort().to(weight.device), weight)
    return entries if system.packed else system.unpacked(entries)


def _shapes(specification: Any, version: int) -> dict[str, tuple[int, ...]]:
    """The shapes of weight and bias, from a specification whose fields are all there and of the right kind."""
    kind = specification.get("kind") if isinstance(specification, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown: this library reads {', '.join(KINDS)} and sum")
    _check_fields(f"a {kind} machine", specification, SHARED | KINDS[kind][1] | ({"packed"} if version > 1 else set()))
    for field, expected in (("activation", str), ("padding", list)):
        value = specification.get(field, [])
        if not isinstance(value, list) or not all(isinstance(entry, expected) for entry in value):
            raise ValueError(f"{field} must be a list with one entry for each {'block' if expected is str else 'axis'}")
    for field in ("bias", "packed"):
        if not isinstance(specification.get(field, False), bool):
            raise ValueError(f"{field} must be true or false, got {specification[field]!r}")
    sizes, kernel, lags = integers("sizes", specification["sizes"]), (), 0
    n = sum(sizes)
    if kind == "conv":
        kernel = integers("kernel_size", specification["kernel_size"])
    elif kind == "recurrent":
        (lags,) = integers("lags", [specification["lags"]], minimum=0)
    shape = (*((lags + 1,) if kind == "recurrent" else ()), n, n, *kernel)
    (time_block,) = integers("time_block", [specification.get("time_block", 1)])
    if prod(shape) >= 2**48 or max(n, lags, time_block, *kernel) >= 2**31:
        raise ValueError(f"a weight of shape {shape} with time_block={time_block} is larger than any file")
    bias = {"bias": (n,)} if specification["bias"] else {}
    if version == 1:
        return {"weight": shape} | bias
    entries = _read(specification["connections"], sizes, lags, time_block) * prod(kernel)
    return {"weight": (entries,)} | bias


def _check_memory(machines: list[Any], entries: int) -> None:
    """That machines need no more than a file of so many numbers lets one expect: it holds nothing of what is zero."""
    needed = 0
    for fields in machines:
        lags, blocks = fields.get("lags", 0) + 1, len(fields["sizes"])
        W = lags * sum(fields["sizes"]) ** 2 * prod(fields.get("kernel_size", ()))
        needed += (0 if fields["packed"] else W) + 256 * lags * blocks**2
    if needed > max(2**26, 64 * entries):
        raise ValueError(f"sizes, lags and connections need far more memory than the {entries:,} numbers of the file")


def _read(connections: Any, sizes: tuple[int, ...], lags: int, time_block: int) -> int:
    """How many entries of W are read, without the kernel; of connections by name nothing is made yet."""
    if not isinstance(connections, str):
        matrices = connect(connections, Partition(sizes), lags, time_block).matrices
        rows = (sum(compress(sizes, row)) * size for m in matrices for row, size in zip(m, sizes, strict=True))
        return sum(rows)
    n, squares = sum(sizes), sum(size * size for size in sizes)
    earlier = {"all": (n * n - squares) // 2, "sequential": sum(map(mul, sizes[1:], sizes))}
    long = {"all": n * n, "sequential": squares}
    if connections not in earlier:
        raise ValueError(f"connections={connections!r} is unknown: use 'all', 'sequential' or matrices")
    short = min(time_block, lags + 1)
    return short * earlier[connections] + (lags + 1 - short) * long[connections]


def _check_fields(what: str, fields: Any, expected: frozenset[str]) -> None:
    if not isinstance(fields, Mapping):
        raise ValueError(f"{what} must be an object, got {fields!r}")
    for wrong, problem in ((set(fields) - expected, "has unknown"), (expected - set(fields), "lacks")):
        if wrong:
            raise ValueError(
                f"{what} {problem} fields {', '.join(sorted(wrong))}: it has {', '.join(sorted(expected))}"
            )
