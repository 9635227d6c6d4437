"""Layers between named parts, their sums, and the order that a sum finds by itself."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..files.folder import write
from ..machine import NotAMachine
from ..pytorch import version
from ..structure.activation import out_of_place
from ..structure.jet import Jet
from .additive import Additive, Parts
from .derivative import LinearSum
from .order import Edge, levels
from .trace import trace
from .uses import Held, uses


class Terms(Additive):
    """A layer, or a sum of them: what adds, and has derivatives and parameters."""

    def __add__(self, other: Any) -> "Sum":
        return Sum([self, other]) if isinstance(other, Terms) else super().__add__(other)

    def forward(self, x0: Parts) -> dict[str, Any]:
        return self.resolvent(x0)

    def tangent(self, x: Parts) -> LinearSum:
        """Df(x), a linear machine on tangent dicts. Its resolvent at x = R_f(x0) is the derivative of R_f at x0.

        Parts that are not of floating point, like indices, are constants.
        """
        return LinearSum(self, x)

    def dual(self, x: Parts) -> LinearSum:
        """(Df(x))*, a linear machine on cotangent dicts. Its resolvent at x = R_f(x0) backpropagates through R_f."""
        return LinearSum(self, x, transposed=True)

    def parameter_cotangents(self, x: Parts, u: Parts) -> dict[str, Any]:
        """(∂f/∂p)* u for each parameter p by name. With u from the dual's resolvent: the gradient of the loss."""
        self._check_parts("u", u)
        module: Any = self
        names = {id(p): name for name, p in module.named_parameters()}
        total: dict[str, Any] = {}
        for layer in self.layers:
            parameters = [p for p in layer.parameters() if p.requires_grad]
            if not parameters or not any(name in u for name in layer.writes):
                continue
            with torch.enable_grad():
                written = layer.evaluate(self.labels[layer], {name: value.detach() for name, value in x.items()})
            outputs = {name: value for name, value in written.items() if name in u and value.requires_grad}
            seeds = [u[name] for name in outputs]
            cotangents = torch.autograd.grad(list(outputs.values()), parameters, seeds, materialize_grads=True)
            for p, cotangent in zip(parameters, cotangents, strict=True):
                name = names[id(p)]
                total[name] = total[name] + cotangent if name in total else cotangent
        return total

    def simplified(self, at: Parts) -> "Sum":
        """The same sum without the reads that layers declare but do not use, which may lower its depth.

        A read is dropped where the derivative by it vanishes at the point `at`, and its argument is held at its value
        there: whether it vanishes everywhere is for the caller to know.
        """
        layers = []
        for layer in self.layers:
            label = self.labels[layer]
            arguments = layer.arguments(label, at)
            used = uses(partial(layer.evaluate, label), arguments)
            if not all(used.values()):
                held = [None if used[name] else value.detach() for name, value in arguments.items()]
                reads = [name for name in layer.reads if used[name]]
                writes = layer.writes[0] if layer.single else layer.writes
                layer = Layer(Held(layer.module, held), reads=reads, writes=writes, name=layer.name)
            layers.append(layer)
        return Sum(layers, parts=self.parts)

    def to_networkx(self):
        """A bipartite `networkx.DiGraph` of the parts, by name, and the layers themselves, each with its `label`."""
        import networkx

        graph = networkx.DiGraph()
        graph.add_nodes_from(self.parts)
        for layer, label in self.labels.items():
            graph.add_node(layer, label=label)
            graph.add_edges_from((name, layer) for name in layer.reads)
            graph.add_edges_from((layer, name) for name in layer.writes)
        return graph


class Layer(Terms, nn.Module):
    """A differentiable module or function from the parts it reads to the parts it writes: a machine of depth one.

    With a tuple of names to write, the module returns as many tensors.

    >>> f = Layer(nn.Linear(3, 4), reads="x1", writes="x2") + Layer(torch.tanh, reads="x2", writes="x3")
    >>> f.depth
    2
    >>> f({"x1": torch.randn(5, 3)})["x3"].shape
    torch.Size([5, 4])
    """

    def __init__(
        self,
        module: Callable[..., Tensor | Sequence[Tensor]],
        *,
        reads: str | Sequence[str],
        writes: str | Sequence[str],
        name: str | None = None,
    ):
        super().__init__()
        if not callable(module):
            raise TypeError(f"module must be a module or a function, got {module!r}")
        if isinstance(module, nn.Module) and any(getattr(child, "inplace", False) for child in module.modules()):
            raise ValueError(f"module works in place, which would change the parts it reads: {module!r}")
        self.module = module
        self.reads = _names("reads", reads)
        self.writes = _names("writes", writes)
        self.single = isinstance(writes, str)
        self.name = name
        if not self.writes:
            raise ValueError("writes is empty: a layer writes at least one part")
        both = set(self.reads) & set(self.writes)
        if both:
            raise NotAMachine(f"a layer that writes what it reads depends on itself: {', '.join(sorted(both))}")

    # Properties, since a module that held itself as an attribute would be its own child.
    @property
    def layers(self) -> tuple["Layer", ...]:
        return (self,)

    @property
    def levels(self) -> tuple[tuple["Layer", ...], ...]:
        return ((self,),)

    @property
    def parts(self) -> tuple[str, ...]:
        return (*self.reads, *self.writes)

    @property
    def labels(self) -> dict["Layer", str]:
        return {self: self.name or "f1"}

    def extra_repr(self) -> str:
        return f"{' × '.join(self.reads)} → {' × '.join(self.writes)}"

    def arguments(self, label: str, x: Parts) -> dict[str, Any]:
        """The parts of x that the layer reads."""
        missing = [name for name in self.reads if name not in x]
        if missing:
            raise ValueError(f"{label} reads {missing[0]}, which the point lacks: it has {', '.join(x) or 'no parts'}")
        return {name: x[name] for name in self.reads}

    def evaluate(self, label: str, x: Parts) -> dict[str, Any]:
        """What the layer writes at x, by part."""
        return self._by_part(label, self.module(*self.arguments(label, x).values()))

    def _by_part(self, label: str, result: Any) -> dict[str, Any]:
        values: Any = (result,) if self.single else result
        if not isinstance(values, Sequence) or len(values) != len(self.writes):
            came = f"{len(values)} values" if isinstance(values, Sequence) else type(values).__name__
            raise ValueError(f"{label} writes {', '.join(self.writes)}, but its module returned {came}")
        for name, value in zip(self.writes, values, strict=True):
            if not isinstance(value, Tensor | Jet):
                raise TypeError(f"{label} must write a tensor to {name}, its module returned {type(value).__name__}")
        return dict(zip(self.writes, values, strict=True))


class Sum(Terms, nn.Module):
    """f_1 + f_2 + …, flattened. `NotAMachine` names the cycle where there is one.

    >>> f = Sum([Layer(torch.sin, reads="a", writes="b"), Layer(torch.cos, reads="b", writes="a")])
    Traceback (most recent call last):
    ...
    resolvent.machine.NotAMachine: the layers depend on each other in a cycle: f1 → b → f2 → a → f1
    """

    def __init__(self, machines: Iterable[Terms], *, parts: Iterable[str] = ()):
        """`parts` are further names that points may have."""
        super().__init__()
        terms: list[Layer] = []
        for machine in machines:
            if not isinstance(machine, Terms):
                raise TypeError(f"a sum is of layers and sums, got {type(machine).__name__}")
            terms += machine.layers
        self.terms = nn.ModuleList(terms)
        self.parts = tuple(dict.fromkeys([*parts, *(name for layer in terms for name in layer.parts)]))
        self.layers = tuple(terms)
        self.labels = {}
        for i, layer in enumerate(terms, 1):
            self.labels.setdefault(layer, layer.name or f"f{i}")
        order = levels([Edge(self.labels[layer], layer.reads, layer.writes) for layer in terms])
        self.levels = tuple(tuple(terms[i] for i in level) for level in order)

    def save(self, folder: str | os.PathLike) -> None:
        """Write `machine.json` and `weights.safetensors` for `rv.load`, if every layer is a structured machine."""
        machines: list[Any] = list(dict.fromkeys(layer.module for layer in self.layers))
        for machine in machines:
            if not hasattr(machine, "specification"):
                raise TypeError(f"a layer is {machine!r}: only sums whose layers are structured machines can be shared")
        layers = [
            dict(
                machine=machines.index(layer.module),
                reads=list(layer.reads),
                writes=layer.writes[0] if layer.single else list(layer.writes),
                name=layer.name,
            )
            for layer in self.layers
        ]
        specification = dict(
            kind="sum", parts=list(self.parts), machines=[m.specification for m in machines], layers=layers
        )
        write(
            folder, specification, {f"{i}.{n}": x for i, m in enumerate(machines) for n, x in m.shared_tensors.items()}
        )

    @classmethod
    def from_sequential(cls, sequential: nn.Sequential) -> "Sum":
        """The layers x0 → x1 → x2 → … of a sequential network; those that work in place are read as if they did not."""
        if not isinstance(sequential, nn.Sequential):
            raise TypeError(f"sequential must be an nn.Sequential, got {type(sequential).__name__}")
        modules = (out_of_place(m) if getattr(m, "inplace", False) else m for m in sequential)
        return cls(Layer(module, reads=f"x{i}", writes=f"x{i + 1}") for i, module in enumerate(modules))

    @classmethod
    def from_module(cls, module: nn.Module, *example: Tensor) -> "Sum":
        """The network as one layer for each tensor operation that `torch.fx` traces; parts are named as its nodes.

        The example shows which values are tensors, and the sum is held to the module there: a module that is not a pure
        function of its inputs (dropout and batch norm in training, operations in place) is refused.
        """
        inputs, operations, values = trace(module, example)
        layers = [Layer(o.module, reads=o.reads, writes=o.writes, name=o.name) for o in operations]
        machine = cls(layers, parts=inputs)
        h = {name: x.clone() for name, x in zip(inputs, example, strict=True)}
        with torch.no_grad():
            for layer in (layer for level in machine.levels for layer in level):
                versions = [version(h[name]) for name in layer.reads]
                h |= layer.evaluate(machine.labels[layer], h)
                if versions != [version(h[name]) for name in layer.reads]:
                    raise ValueError(f"{machine.labels[layer]} writes to its input in place: a layer must not")
        for name in h:
            if not torch.allclose(h[name], values[name], rtol=0, atol=0, equal_nan=True):
                raise ValueError(f"{name} came out differently the second time: the module is not a pure function")
        return machine


def depends(f: Terms, g: Terms, at: tuple[Parts, Parts] | None = None) -> bool:
    """Does f depend on g: does it read what g writes or, at points (x1, x2), is (Df(x1)) g(x2) not zero."""
    if at is None:
        written = {name for layer in g.layers for name in layer.writes}
        return any(name in written for layer in f.layers for name in layer.reads)
    x1, x2 = at
    direction = {name: value for name, value in g.endofunction(x2).items() if name in f.parts}
    return any(bool(value.count_nonzero()) for value in f.tangent(x1).endofunction(direction).values())


def _names(argument: str, names: str | Sequence[str]) -> tuple[str, ...]:
    names = (names,) if isinstance(names, str) else tuple(names)
    if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ValueError(f"{argument} must be a name or a tuple of different names, got {names!r}")
    return names
