"""What every structured machine shares: blocks, a linear operator, a pointwise σ, and the solve."""

import os
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from .. import pytorch
from ..algebra.sum import Sum
from ..files.folder import write
from ..machine import Machine, Point, Projection
from ..structure.activation import ACTIVATIONS, ActivationLike
from ..structure.activations import Activations, activations_of
from ..structure.connections import Connections, ConnectionsLike, connect
from ..structure.jet import Jet
from ..structure.operator import Operator
from ..structure.partition import Partition
from ..structure.sigma import ITSELF, ZERO
from ..sweep.explain import explain_points
from ..sweep.solve import solve, weight_cotangent
from ..sweep.system import System, system
from .derivative import Dual, Tangent, both, pair
from .expansion import blocks_of, expand

Pair = tuple[Any, Any]  # of tensors or jets


class StructuredMachine(Machine, nn.Module):
    """The machine f = W + σ on X = Y ⊕ Z, where W is read only from earlier blocks to later ones.

    A point is a pair (y, z). A subclass brings its operator; calling the machine is half of its resolvent.
    """

    weight: Any
    """W: the parameter or, of a packed machine, computed from its `entries`."""
    bias: nn.Parameter | None
    stored = "weight"
    """The name of the parameter that has W: of a packed machine, `entries`."""
    kind = ""
    """Its name in files; a machine of one's own has none."""
    leaf = True  # one operation where a network is traced

    def __init__(
        self,
        operator: Operator,
        sizes: Sequence[int],
        activation: ActivationLike | Sequence[ActivationLike] = "tanh",
        *,
        bias: bool = True,
        connections: ConnectionsLike | Connections = "all",
        packed: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        partition = Partition(sizes)
        if not isinstance(connections, Connections):
            connections = connect(connections, partition)
        sigma = activations_of(activation, partition, operator.channel_axis, operator.event_ndim)
        if not isinstance(packed, bool):
            raise TypeError(f"packed must be True or False, got {packed!r}")
        self._system = system(connections, operator, sigma, packed)
        weight = torch.empty(self._system.weight_shape, device=device, dtype=dtype)
        if not weight.is_floating_point():
            raise TypeError(f"dtype must be of floating point, got {dtype}")
        if packed:
            self.stored = "entries"
        self.register_parameter(self.stored, nn.Parameter(weight))
        values = nn.Parameter(torch.empty(partition.total, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", values)
        self.reset_parameters()

    # What a machine is made of cannot be replaced: a sweep relies on that all of it agrees.
    @property
    def system(self) -> System:
        return self._system

    @property
    def partition(self) -> Partition:
        return self._system.partition

    @property
    def connections(self) -> Connections:
        return self._system.connections

    @property
    def operator(self) -> Any:
        return self._system.operator

    @property
    def activation(self) -> Activations:
        return self._system.activations

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw W so that y keeps unit variance from block to block. The bias, and W where it is not read, are zero.

        Var y[c] = Var W[c, :] Σ E[σ(g)²] over the channels that feed c, with g standard normal: the block's true
        fan-in, where each channel counts as much as its activation lets through. For relu this is He's rule.
        """
        weight, bias = pytorch.weight_and_bias(self)
        if weight.is_meta:  # nothing to draw
            return
        n, (out_axis, in_axis) = self.partition.total, self.operator.weight_axes
        mask = self.operator.mask(self.connections.expand(self.partition))
        read = mask.movedim((out_axis, in_axis), (0, 1)).reshape(n, n, -1).sum(2)
        runs = [(torch.tensor(a.second_moment(), device="cpu"), size) for a, size in self.activation.runs]
        fan_in = (read * torch.cat([power.expand(size) for power, size in runs])).sum(1)
        fan_in[: self.partition.sizes[0]] *= 2  # what recurs into the first block meets the input there
        scale = torch.where(fan_in > 0, fan_in.rsqrt(), 0).to(weight)
        W = weight.new_empty(self.operator.weight_shape) if self._system.packed else weight
        W.normal_().mul_(scale.reshape(-1, *(1,) * (mask.ndim - 1 - out_axis)))
        W.masked_fill_(~mask.to(weight.device), 0)
        if self._system.packed:
            weight.copy_(self._system.packed_weight(W))
        if bias is not None:
            bias.zero_()

    def __getattr__(self, name: str) -> Any:
        """What is no attribute of its own: a parameter or, of a packed machine, W."""
        if name == "weight" and self.stored != name:
            return self._system.unpacked(getattr(self, self.stored))
        return super().__getattr__(name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name == "weight_orig" and self.stored != "weight":  # what `torch.nn.utils.prune` begins with
            raise TypeError("the weight of a packed machine is computed from its entries: prune those, by that name")
        super().register_parameter(name, param)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "weight" and self.stored != name:
            raise AttributeError("the weight of a packed machine is computed from its entries: change those")
        super().__setattr__(name, value)

    @property
    def executor(self) -> str:
        """What sweeps over the blocks, by device, precision and σ: "native", "triton" or, step by step, "torch".

        On a GPU, "triton" serves convolutions over one axis of up to 64 positions; in larger spaces, and over jets
        everywhere, "torch" does. On a CPU "native" serves jets, too.
        """
        weight, _ = pytorch.weight_and_bias(self)
        return self._system.executor(weight.device.type, weight.dtype)

    def forward(self, x: Tensor | Jet) -> Any:
        """The z of the resolvent at y0 = x + bias, z0 = 0. x has the channels of the first block, or all of them."""
        system = self._system
        try:
            fits = x.ndim in system.operator.ndims and x.shape[system.operator.channel_axis] in system.inputs
        except AttributeError:
            fits = False
        if not fits:
            self._refuse(x)
        return self.solve(x)[1]

    def _refuse(self, x: Any) -> None:
        """Whole blocks are enough for a solve; an input is the first block, or all."""
        _check_tensor("x", x)
        first, total = self._system.inputs
        raise ValueError(
            f"x has shape {tuple(x.shape)}, the machine takes {first} channels, its first block, or all {total}, "
            f"in the layout {self.operator.layout}: sizes={self.partition.sizes}"
        )

    def solve(self, y0: Tensor | Jet | None, z0: Tensor | Jet | None = None) -> Pair:
        """The (y, z) with y = W z + y0 + bias and z = σ(y) + z0, in one sweep over the blocks.

        y0 and z0 have the channels of whole blocks, from the first on; None is zero.
        """
        return solve(self._system, ITSELF, *pytorch.weight_and_bias(self), y0, z0)

    def resolvent(self, x0: Point) -> Pair:
        """(id - f)^-1 of a pair (y0, z0): a solve without the bias, which belongs to y0."""
        y0, z0 = pair(x0)
        return solve(self._system, ITSELF, pytorch.weight_and_bias(self)[0], None, y0, z0)

    def endofunction(self, x: Point) -> Pair:
        """f(y, z) = (W z, σ(y))."""
        weight, _ = pytorch.weight_and_bias(self)
        y, z = both(self._system, weight, x, ("y", "z"))
        Wz, _ = solve(self._system, ZERO, weight, None, None, z)
        return Wz, self.activation(pytorch.cast(y))

    def depth_sequence(self, x0: Point, start: Point | None = None) -> list[Point]:
        return super().depth_sequence(pair(x0), start)

    def depth_at(self, x: Point = None) -> int:
        """2n + 1 for the blocks I_0 … I_n: of channels or, where lags make it depend on the steps of x, of both."""
        y, z = pair(x)
        like = z if y is None else y
        if like is None and self.connections.lags:
            raise ValueError(f"a {type(self).__name__} has no depth of its own, it grows with time: depth_at(x)")
        steps = 1 if like is None else self.operator.time_steps(like)
        return max(0, 2 * len(blocks_of(self._system, steps)) - 1)

    def tangent(self, x: Point, *, value: Tensor | Jet | None = None) -> Tangent:
        """The derivative machine at (y, z), or y alone: dy = W dz + dy0, dz = σ'(y) ⊙ dy + dz0.

        A known `value` = σ(y) saves computing it again: the z of a solve without z0 and lengths.
        """
        return Tangent(self, _y(x) if isinstance(x, tuple | list) else x, value)

    def dual(self, x: Point, *, value: Tensor | Jet | None = None) -> Dual:
        """The dual machine at (y, z), or y alone: u = W* v + u0, v = σ'(y) ⊙ u + v0. For `value`, see `tangent`."""
        return Dual(self, _y(x) if isinstance(x, tuple | list) else x, value)

    def weight_cotangent(self, v: Tensor | Jet, z: Tensor | Jet) -> Tensor:
        """Q = v z* summed over the batch, zero where W is not read: the cotangent of W, from the dual's v.

        Of a packed machine, that of its entries.
        """
        return weight_cotangent(self._system, pytorch.weight_and_bias(self)[0], v, z)

    def split(self, z: Tensor | Jet) -> tuple[Any, ...]:
        """The blocks of a tensor, as views."""
        _check_tensor("z", z)
        axis, channels = self.operator.channel_axis, self.partition.total
        if z.ndim < self.operator.event_ndim or z.shape[axis] != channels:
            raise ValueError(
                f"z has shape {tuple(z.shape)}, split needs {self.operator.layout} with all {channels} channels"
            )
        return z.split(self.partition.sizes, dim=axis)

    def placed(self, t: Tensor, block: int = -1) -> Tensor:
        """The tensor of one block among zeros: a cotangent of the last block alone, for the dual machine."""
        _check_tensor("t", t)
        axis, sizes = self.operator.channel_axis, self.partition.sizes
        if not -len(sizes) <= block < len(sizes):
            raise ValueError(f"block={block} is none of the {len(sizes)} blocks: sizes={sizes}")
        if t.ndim < self.operator.event_ndim or t.shape[axis] != sizes[block]:
            raise ValueError(
                f"t has shape {tuple(t.shape)}, block {block} has {sizes[block]} channels in {self.operator.layout}"
            )
        shape = list(t.shape)
        zeros = [t.new_zeros((*shape[:axis], size, *shape[axis:][1:])) for size in sizes]
        zeros[block] = t
        return torch.cat(zeros, axis)

    def as_sum(self, prefix: str = "") -> Sum:
        """The same machine as a sum of layers z… → y_i (rows of W) and y_i → z_i (σ), of depth 2n + 1.

        Its parts are y0, z0, y1, z1, …, behind the prefix; `as_point` gives its input. Parameters are shared.
        """
        return expand(self, 1, prefix)

    def as_point(self, y0: Tensor | Jet, z0: Tensor | Jet | None = None, prefix: str = "") -> dict[str, Any]:
        """(y0 + bias, z0) in the parts of `as_sum`."""
        points = dict(y0=y0) if z0 is None else dict(y0=y0, z0=z0)
        explain_points(self._system, pytorch.weight_and_bias(self)[0], points, short=("y0", "z0"))
        halves: dict[str, Any] = {"y": self.operator.extended(y0, self.bias)}
        halves |= {} if z0 is None else {"z": self.operator.extended(z0)}
        return {
            f"{prefix}{half}{name}": self.operator.part(x, block.region)
            for half, x in halves.items()
            for name, block in blocks_of(self._system, self.operator.time_steps(y0)).items()
        }

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """The paper's chain of length 2n + 1, as projections of pairs: which channels of y and z each V_i keeps."""
        y, z = pair(x)
        like = z if y is None else y
        steps = 1 if like is None else self.operator.time_steps(like)
        kept = [self.operator.everything(steps)] * 2
        chain = []
        for block in blocks_of(self._system, steps).values():
            for half in range(2):
                kept = list(kept)
                kept[half] = kept[half].clone()
                self.operator.part(kept[half], block.region).fill_(False)
                chain.append(_onto(kept))
        return chain

    @property
    def specification(self) -> dict[str, Any]:
        """What `machine.json` says of this machine: the arguments that make it again, as plain data."""
        names = [a.name for a in self.activation.blocks]
        if not self.kind:
            raise ValueError(f"a {type(self).__name__} is none of the library's kinds: only those can be shared")
        if self._system.codes is None:
            custom = next(a.name for a in self.activation.blocks if ACTIVATIONS.get(a.name) is not a)
            raise ValueError(f"activation {custom} is not one of {', '.join(ACTIVATIONS)}: only those can be shared")
        matrices = [[list(row) for row in matrix] for matrix in self.connections.matrices]
        return dict(
            kind=self.kind,
            sizes=list(self.partition.sizes),
            activation=names,
            connections=self._named_connections("all", "sequential")
            or (matrices if self.connections.lags else matrices[0]),
            bias=self.bias is not None,
            packed=self._system.packed,
            **self.arguments,
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Write `machine.json` and `weights.safetensors`, which `rv.load` turns into the same machine, bit for bit."""
        write(folder, self.specification, self.shared_tensors)

    @property
    def shared_tensors(self) -> dict[str, Tensor]:
        """The contents of `weights.safetensors`: of W, what is read, in the order of W in memory."""
        weight, packed = getattr(self, self.stored).detach().cpu(), self._system.packed
        entries = weight if packed else self._system.packed_weight(weight)
        tensors: dict[str, Tensor] = {"weight": entries[self._system.places().argsort()]}
        return tensors if self.bias is None else tensors | {"bias": self.bias}

    def extra_repr(self) -> str:
        everything = connect("all", self.partition, self.connections.lags, self.connections.time_block)
        counts = [sum(sum(map(sum, matrix)) for matrix in c.matrices) for c in (self.connections, everything)]
        names = ("all", "sequential", "recurrent") if self.connections.lags else ("all", "sequential")
        connections = self._named_connections(*names) or f"{counts[0]} of {counts[1]}"
        fields = dict(sizes=self.partition.sizes, activation=self.activation, **self.arguments)
        fields |= dict(connections=connections, bias=self.bias is not None)
        fields |= dict(packed=True) if self._system.packed else {}
        read = f"reads {self._system.entries:,} of {prod(self.operator.weight_shape):,} weights"
        return ", ".join([*(f"{name}={value}" for name, value in fields.items()), read])

    @property
    def arguments(self) -> dict[str, Any]:
        """What a machine of this kind is made with, besides what all machines share."""
        return self.operator.arguments

    def _named_connections(self, *names: Any) -> str | None:
        time_block = self.connections.time_block
        named = {name: connect(name, self.partition, self.connections.lags, time_block) for name in names}
        return next((name for name, c in named.items() if c == self.connections), None)


def _check_tensor(name: str, x: Any) -> None:
    if not isinstance(x, Tensor | Jet):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")


def _y(x: Point) -> Any:
    """The y of a pair, at which the derivative is; None is zero, as large as z."""
    y, z = pair(x)
    return torch.zeros_like(z) if y is None and z is not None else y


def _onto(kept: list[Tensor]) -> Projection:
    def project(x: Point) -> Point:
        return tuple(None if half is None else half.where(mask, 0) for half, mask in zip(pair(x), kept, strict=True))

    return project
