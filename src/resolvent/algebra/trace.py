"""Reading a module as operations between named tensors, through `torch.fx`."""

import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn

from ..structure.activation import out_of_place


class Operation(NamedTuple):
    """A traced function from the tensors it reads to those it writes."""

    module: fx.GraphModule
    reads: Sequence[str]
    writes: str | Sequence[str]
    name: str


def trace(module: nn.Module, example: Sequence[Tensor]) -> tuple[list[str], list[Operation], dict[str, Any]]:
    """The names of the module's inputs, its operations, and every value on the example by name."""
    if not all(isinstance(x, Tensor) for x in example):
        raise TypeError(f"example must be tensors, got {', '.join(type(x).__name__ for x in example)}")
    tracer = _Tracer()
    root = nn.Sequential(module) if tracer.is_leaf_module(module, "") else module
    traced = fx.GraphModule(root, tracer.trace(root))
    inputs = [node.name for node in traced.graph.nodes if node.op == "placeholder"]
    if len(example) != len(inputs):
        raise ValueError(f"example has {len(example)} tensors, {type(module).__name__} takes {', '.join(inputs)}")
    recorder = _Recorder(traced)
    buffers = {name: (buffer, buffer.clone()) for name, buffer in module.named_buffers()}
    with torch.no_grad():
        recorder.run(*(x.clone() for x in example))
        changed = [name for name, (buffer, before) in buffers.items() if not torch.equal(buffer, before)]
        for buffer, before in buffers.values():
            buffer.copy_(before)
    for name, child in [*traced.named_modules()]:  # what was recorded stays as the module itself gives it
        if getattr(child, "inplace", False):
            traced.set_submodule(name, out_of_place(child))
    if changed:
        raise ValueError(f"the module changes its buffer {changed[0]}, so it is not a pure function: call eval() first")
    for source in next(node for node in traced.graph.nodes if node.op == "output").all_input_nodes:
        if not isinstance(recorder.values[source], Tensor):
            kind = type(recorder.values[source]).__name__
            raise ValueError(
                f"the module returns a {kind} from {source.name}: it must take it apart into tensors first"
            )
    operations = list(_operations(traced, recorder.values))
    return inputs, operations, {node.name: value for node, value in recorder.values.items()}


class _Tracer(fx.Tracer):
    """Looks into all modules but PyTorch's own and those that call themselves a leaf."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return getattr(m, "leaf", False) or super().is_leaf_module(m, module_qualified_name)


class _Recorder(fx.Interpreter):
    """Runs a traced module and keeps every node's value as it was when computed."""

    def __init__(self, traced: fx.GraphModule):
        super().__init__(traced, garbage_collect_values=False)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.values[n] = result.clone() if isinstance(result, Tensor) else result
        return result


def _operations(traced: fx.GraphModule, values: dict[fx.Node, Any]) -> Iterator[Operation]:
    """One for each node with a tensor value; one for all the tensors that a node returns as a tuple."""
    picked: set[fx.Node] = set()
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or node in picked:
            continue
        picks = [
            user
            for user in node.users
            if user.target is operator.getitem and user.args[0] is node and isinstance(values[user], Tensor)
        ]
        if isinstance(values[node], Tensor):
            yield _operation(traced, [node], values, node)
        elif picks and len(picks) == len(node.users):
            picked.update(picks)
            yield _operation(traced, picks, values, node)
        # Other values, sizes for one, are computed again by the operations that use them.


def _operation(traced: fx.GraphModule, writes: list[fx.Node], values: dict[fx.Node, Any], node: fx.Node) -> Operation:
    """The part of the graph between tensors and `writes`, as an operation."""
    reads: dict[fx.Node, None] = {}
    inner: list[fx.Node] = []

    def visit(current: fx.Node) -> None:
        for source in current.all_input_nodes:
            if source.op != "get_attr" and isinstance(values[source], Tensor):
                reads[source] = None
            elif source not in inner:
                visit(source)
                inner.append(source)

    for target in writes:
        visit(target)
    graph = fx.Graph()
    copies = {source: graph.placeholder(source.name) for source in reads}
    for current in (*inner, *writes):
        copies[current] = graph.node_copy(current, copies.__getitem__)
    outputs = [copies[target] for target in writes]
    graph.output(outputs[0] if len(writes) == 1 else tuple(outputs))
    names = [target.name for target in writes]
    kind = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return Operation(
        fx.GraphModule(traced, graph),
        reads=[source.name for source in reads],
        writes=names[0] if len(names) == 1 else names,
        name=f"{kind}:{node.name}" if kind != node.name else kind,
    )
