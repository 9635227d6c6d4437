"""A structured machine without its numbers: what a sweep runs on."""

from functools import lru_cache
from itertools import accumulate, chain, groupby, islice
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..pytorch import constant
from ..structure.activation import ACTIVATIONS
from ..structure.activations import Activations
from ..structure.connections import Connections
from ..structure.convolution import Convolution
from ..structure.dense import Dense
from ..structure.lagged import Lagged
from ..structure.operator import CONVOLUTION, LAGGED, Operator, Product
from ..structure.partition import Partition
from .executor import EXECUTORS
from .plan import Activated, backwards, plan, unrolled


class System:
    """Blocks, which feed which, an operator and σ, which agree; the rectangles of W that are read, and when they are.

    Immutable, and interned by `system`: equal ones are the same object. `dual` is the system of the dual machine.
    """

    def __init__(self, connections: Connections, operator: Operator, activations: Activations, packed: bool):
        self.partition, self.connections = activations.partition, connections
        self.operator, self.activations, self.packed = operator, activations, packed
        self.form, self.codes = operator.form(), activations.codes
        self._check()
        self.rectangles, self.steps = plan(self.partition, connections)
        starts = [*accumulate((prod(operator.entries_shape(r)) for r in self.rectangles), initial=0)]
        self.entries = starts[-1]
        """How many of W are read."""
        if packed:
            self.rectangles = tuple(r._replace(start=i) for r, i in zip(self.rectangles, starts, strict=False))
        self.weight_shape: tuple[int, ...] = (self.entries,) if packed else operator.weight_shape
        """Of W as a sweep takes it: whole, or packed."""
        self.inputs = self.partition.sizes[0], self.partition.total
        """How many channels an input may have: those of the first block, or all."""
        self.transposed = False
        self.programs: dict[Any, Any] = {}
        """What executors made of it, each under a key of its own."""
        self.dual = object.__new__(System)
        self.dual.__dict__.update(self.__dict__, steps=backwards(self.steps), transposed=True, programs={}, dual=self)

    def __setattr__(self, name: str, value: Any) -> None:
        if "dual" in vars(self):  # the last one that is set
            raise AttributeError(
                f"{name} of a System cannot be replaced: equal machines share it, make one of your own"
            )
        super().__setattr__(name, value)

    @constant  # a compiler is not to trace how an executor looks at a system
    def executor(self, device: str, dtype: torch.dtype) -> str:
        """What sweeps on this type of device and in this precision; "torch" is Algorithm 1 step by step."""
        executor = EXECUTORS.get(device)
        if executor is None or not executor.serves(self, dtype, positions=1):
            return "torch"
        return executor.__name__.rpartition(".")[2]

    @constant
    def in_one_operation(self, device: str, dtype: torch.dtype) -> bool:
        """Whether compiled code is to call an executor. Asked in traced code, all of it is exported in PyTorch 2.11."""
        return not torch.compiler.is_exporting() and self.executor(device, dtype) != "torch"

    @constant  # nor how a plan is unrolled
    def unrolled(self, steps: int, history: int) -> tuple[Product | Activated, ...]:
        """The plan for so many time steps, of which the first ones are given."""
        return _unrolled(self, steps, history)

    @constant
    def integers(self) -> tuple[int, ...]:
        """All of it, as compiled code carries it: for systems that an executor knows."""
        return _serialized(self)

    @property
    def whole(self) -> "System":
        """The same system of a W that is not packed."""
        made = system(self.connections, self.operator, self.activations)
        return made.dual if self.transposed else made

    def places(self, device: torch.device | str = "cpu") -> Tensor:
        """Where each entry that is read, rectangle after rectangle, stands in W as it lies in memory, row by row."""
        return _places(self, torch.device(device))

    def unpacked(self, weight: Tensor) -> Tensor:
        """W of its entries, zero where it is not read."""
        places, shape = self.places(weight.device), self.operator.weight_shape
        return weight.new_zeros(prod(shape)).index_copy(0, places, weight).view(shape)

    def packed_weight(self, W: Tensor) -> Tensor:
        """The entries of W that are read, rectangle after rectangle."""
        return W.reshape(-1)[self.places(W.device)]

    def __deepcopy__(self, memo: dict) -> "System":
        return self

    def __reduce__(self):
        made = system, (self.connections, self.operator, self.activations, self.packed)
        return (_dual_of, made) if self.transposed else made

    def _check(self) -> None:
        """Operator, blocks, connections and σ come from different places: where they disagree, W would be misread."""
        n, form = len(self.partition), self.form
        if self.operator.channels != self.partition.total:
            raise ValueError(f"the operator has {self.operator.channels} channels, sizes={self.partition.sizes}")
        if any(len(matrix) != n or any(len(row) != n for row in matrix) for matrix in self.connections.matrices):
            raise ValueError(f"connections are not of {n} blocks: sizes={self.partition.sizes}")
        if len(self.activations.blocks) != n:
            raise ValueError(f"there are {len(self.activations.blocks)} activations for {n} blocks")
        if form is not None and form.lags + 1 != len(self.connections.matrices):
            raise ValueError(
                f"connections are for {len(self.connections.matrices)} lags, the operator has {form.lags + 1}"
            )


def system(connections: Connections, operator: Operator, activations: Activations, packed: bool = False) -> System:
    """The system of these: one for all that are equal, unless it has parts of one's own, which are not to be kept."""
    own = operator.form() is None or activations.codes is None
    return (System if own else _interned)(connections, operator, activations, packed)


_interned = lru_cache(maxsize=256)(System)


def _dual_of(make: Any, arguments: tuple) -> System:
    return make(*arguments).dual


@lru_cache(maxsize=8)  # as large as W
@torch.inference_mode(False)  # it is kept for calls outside of it
def _places(system: System, device: torch.device) -> Tensor:
    operator, parts = system.operator, []
    for r in system.rectangles:
        ranges = [range(size) for size in operator.weight_shape]
        ranges[0] = r.lags  # where there is time
        ranges[operator.weight_axes[0]], ranges[operator.weight_axes[1]] = r.to, r.source
        place = torch.zeros((), dtype=torch.int64, device="cpu")
        for part, size in zip(ranges, operator.weight_shape, strict=True):
            place = place.unsqueeze(-1) * size + torch.arange(part.start, part.stop, device="cpu")
        parts.append(place.flatten())
    return torch.cat(parts or [torch.zeros(0, dtype=torch.int64, device="cpu")]).to(device)


@lru_cache(maxsize=32)
def _unrolled(system: System, steps: int, history: int) -> tuple[Product | Activated, ...]:
    times = range(history, steps)
    return tuple(unrolled(system.rectangles, system.partition, system.steps, system.transposed, times))


def _serialized(system: System) -> tuple[int, ...]:
    form, partition, connections = system.form, system.partition, system.connections
    assert form is not None  # or no executor would know it
    assert system.codes is not None
    matrices = [(len([*same]), *chain(*matrix)) for matrix, same in groupby(connections.matrices)]
    sizes, padding = partition.sizes, getattr(system.operator, "padding", ())
    head = (form.kind, form.lags, form.axes, connections.time_block, int(system.packed), len(sizes), len(matrices))
    return *head, *sizes, *system.codes, *form.kernel[3 - form.axes :], *chain(*padding), *map(int, chain(*matrices))


@lru_cache(maxsize=256)
def from_integers(integers: tuple[int, ...]) -> System:
    """The system that `System.integers` wrote."""
    rest = iter(integers)

    def take(count: int) -> tuple[int, ...]:
        return tuple(islice(rest, count))

    kind, lags, axes, time_block, packed, n, count = take(7)
    partition, codes, kernel = Partition(take(n)), take(n), take(axes)
    padding = tuple((before, after) for before, after in (take(2) for _ in range(axes)))
    matrices: list[tuple] = []
    for _ in range(count):
        (same,) = take(1)
        matrices += [tuple(tuple(map(bool, take(n))) for _ in range(n))] * same
    channels = partition.total
    operator = Convolution(channels, kernel, padding) if kind == CONVOLUTION else Dense(channels)
    operator = Lagged(channels, lags) if kind == LAGGED else operator
    blocks = tuple(list(ACTIVATIONS.values())[code] for code in codes)
    activations = Activations(blocks, partition, operator.channel_axis, operator.event_ndim)
    return system(Connections(tuple(matrices), time_block), operator, activations, bool(packed))
