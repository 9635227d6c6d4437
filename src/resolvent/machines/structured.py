"""What every structured machine shares: a partition, a linear operator, a pointwise σ, and the solve."""

import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _is_any_autocast_enabled
from torch.compiler import is_compiling

from ..structure.activation import ACTIVATIONS, Activations, Pointwise, Sigma
from .derivative import Dual, Point, Tangent
from .expansion import blocks_of, expand
from ..files.folder import write
from ..structure.operator import Operator
from ..structure.partition import Connections, Partition, connect
from ..sweep.plan import Plan, make_plan
from ..sweep.solve import at_once, solve, weight_cotangent, weight_cotangent_at_once
from ..algebra.sum import Sum
from ..sweep.sweep import executor, with_handle

FIRST = ("y0", "dy0", "u0")
"""What a solve takes as short as it is."""
INPUTS = (*FIRST, "z0", "dz0", "v0")
"""What may be short or None."""


def _constant(function: Any) -> Any:
    """What `torch.compiler.assume_constant_result` does, without importing the compiler: that takes a second."""
    function._dynamo_marked_constant = True
    return function


class StructuredMachine(nn.Module):
    """The machine f = W + σ on X = Y ⊕ Z, where W is read only from earlier blocks to later ones.

    A subclass brings its operator; calling the machine is its resolvent.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None
    kind: str
    leaf = True  # one operation where a network is traced

    def __init__(
        self,
        operator: Operator,
        partition: Partition,
        activation: str | Pointwise | Sequence[str | Pointwise],
        *,
        bias: bool,
        connections: Connections,
        device: torch.device | str | int | None,
        dtype: torch.dtype | None,
    ):
        super().__init__()
        self.operator = operator
        self.partition = partition
        self.connections = connections
        self.activation = Activations(activation, partition, operator.channel_axis)
        weight = torch.empty(operator.weight_shape, device=device, dtype=dtype)
        if not weight.is_floating_point():
            raise TypeError(f"dtype must be of floating point, got {dtype}")
        self.weight = nn.Parameter(weight)
        values = nn.Parameter(torch.empty(partition.total, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", values)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw W so that y keeps unit variance from block to block. The bias, and W where it is not read, are zero.

        Var y[c] = Var W[c, :] Σ E[σ(g)²] over the channels that feed c, with g standard normal: the block's true
        fan-in, where each channel counts as much as its activation lets through. For relu this is He's rule.
        """
        n, (out_axis, in_axis) = self.partition.total, self.operator.weight_axes
        mask = self.operator.mask(self.connections.expand(self.partition))
        read = mask.movedim((out_axis, in_axis), (0, 1)).reshape(n, n, -1).sum(2)
        runs = [(torch.tensor(a.second_moment(), device="cpu"), size) for a, size in self.activation.runs]
        fan_in = (read * torch.cat([power.expand(size) for power, size in runs])).sum(1)
        fan_in[: self.partition.sizes[0]] *= 2  # what recurs into the first block meets the input there
        scale = torch.where(fan_in > 0, fan_in.rsqrt(), 0).to(self.weight)
        self.weight.normal_().mul_(scale.reshape(-1, *(1,) * (mask.ndim - 1 - out_axis)))
        self.weight.masked_fill_(~mask.to(self.weight.device), 0)
        if self.bias is not None:
            self.bias.zero_()

    @property
    def depth(self) -> int:
        """2n + 1 for the blocks I_0 … I_n."""
        return 2 * len(self.partition) - 1

    @property
    def executor(self) -> str:
        """What sweeps over the blocks, by device, precision and σ: "native", "triton" or, step by step, "torch".

        On a GPU, "triton" serves convolutions over one axis of up to 64 positions; in larger spaces "torch" does.
        """
        return executor(self.operator, self.activation, self.weight)

    def forward(self, x: Point) -> Point:
        """The z of the resolvent at y0 = x, z0 = 0. x fills the first channels and is zero-extended."""
        return self.solve(x)[1]

    def solve(self, y0: Point, z0: Point | None = None) -> tuple[Point, Point]:
        """The resolvent: the (y, z) with y = W z + y0 + bias and z = σ(y) + z0, in one sweep over the blocks."""
        done = self._at_once(self.activation, y0, z0, biased=True)
        if done is not None:
            return done
        weight, y0, z0 = self._points(y0=y0, z0=z0)
        return solve(self.operator, self._plan(y0), self.activation, weight, y0, z0, bias=self._bias(weight))

    def endofunction(self, y: Point, z: Point) -> tuple[Point, Point]:
        """f(y, z) = (W z, σ(y)). `solve` inverts id - f; the bias belongs to y0."""
        weight, y, z = self._points(y=y, z=z)
        Wz, _ = solve(self.operator, self._plan(z), None, weight, None, z)
        return Wz, self.activation(y)

    def tangent(self, y: Point, z: Point | None = None) -> Tangent:
        """The derivative machine at y: dy = W dz + dy0, dz = σ'(y) ⊙ dy + dz0.

        Where z = σ(y) is at hand, as after a solve without z0 and lengths, it saves computing σ again.
        """
        return Tangent(self.activation, y, z, self)

    def dual(self, y: Point, z: Point | None = None) -> Dual:
        """The dual machine at y: u = W* v + u0, v = σ'(y) ⊙ u + v0. For z, see `tangent`."""
        return Dual(self.activation, y, z, self)

    def weight_cotangent(self, v: Point, z: Point) -> Point:
        """Q = v z* summed over the batch, zero where W is not read: the cotangent of W, from the dual's v."""
        weight, operator = self._parameters.get("weight"), self.operator
        if weight is not None and not is_compiling() and type(v) is Tensor and v.ndim in operator.ndims:
            plan = self._plan_at(operator.time_steps(v), 0)
            done = weight_cotangent_at_once(operator, plan, weight, v, z)
            if done is not None:
                return done
        _, v, z = self._points(v=v, z=z)
        return weight_cotangent(self.operator, self._plan(v), v, z)

    def split(self, z: Point) -> tuple[Point, ...]:
        """The blocks of a tensor, as views."""
        axis, channels = self.operator.channel_axis, self.partition.total
        if z.ndim < self.operator.event_ndim or z.shape[axis] != channels:
            raise ValueError(
                f"z has shape {tuple(z.shape)}, split needs {self.operator.layout} with all {channels} channels"
            )
        return z.split(self.partition.sizes, dim=axis)

    def as_sum(self, prefix: str = "") -> Sum:
        """The same machine as a sum of layers z… → y_i (rows of W) and y_i → z_i (σ), of depth 2n + 1.

        Its parts are y0, z0, y1, z1, …, behind the prefix; `as_point` gives its input. Parameters are shared.
        """
        return expand(self, self._plan_at(1, 0), prefix)

    def as_point(self, y0: Point, z0: Point | None = None, prefix: str = "") -> dict[str, Tensor]:
        """(y0 + bias, z0) in the parts of `as_sum`."""
        weight, y0, z0 = self._points(y0=y0, z0=z0)
        halves = {"y": self.operator.extended(y0, self._bias(weight))} | ({} if z0 is None else {"z": z0})
        return {
            f"{prefix}{half}{name}": self.operator.part(x, block.region)
            for half, x in halves.items()
            for name, block in blocks_of(self._plan(y0)).items()
        }

    def cofiltration(self) -> tuple[dict[str, Tensor], ...]:
        """The paper's chain of length 2n + 1: which channels of y and z each V_i keeps, as masks."""
        return self._chain(1)

    @property
    def specification(self) -> dict[str, Any]:
        """What `machine.json` says of this machine: the arguments that make it again, as plain data."""
        names = [a.name for a in self.activation.blocks]
        if self.activation.codes is None:
            custom = next(a.name for a in self.activation.blocks if ACTIVATIONS.get(a.name) is not a)
            raise ValueError(f"activation {custom} is not one of {', '.join(ACTIVATIONS)}: only those can be shared")
        matrices = [[list(row) for row in matrix] for matrix in self.connections.matrices]
        return dict(
            kind=self.kind,
            sizes=list(self.partition.sizes),
            activation=names,
            connections=self._named_connections() or (matrices if self._lags else matrices[0]),
            bias=self.bias is not None,
            **self._arguments,
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Write `machine.json` and `weights.safetensors`, which `rv.load` turns into the same machine, bit for bit."""
        write(folder, self.specification, self.shared_tensors)

    @property
    def shared_tensors(self) -> dict[str, Tensor]:
        """The contents of `weights.safetensors`."""
        tensors: dict[str, Tensor] = {"weight": self.weight}
        return tensors if self.bias is None else tensors | {"bias": self.bias}

    def extra_repr(self) -> str:
        everything = connect("all", self.partition, self._lags, self.connections.time_block)
        counts = [sum(sum(map(sum, matrix)) for matrix in c.matrices) for c in (self.connections, everything)]
        connections = self._named_connections() or f"{counts[0]} of {counts[1]}"
        fields = dict(sizes=self.partition.sizes, activation=self.activation, **self._arguments)
        fields |= dict(connections=connections, bias=self.bias is not None, depth=self.depth)
        return ", ".join(f"{name}={value}" for name, value in fields.items())

    @property
    def _lags(self) -> int:
        return len(self.connections.matrices) - 1

    @property
    def _arguments(self) -> dict[str, Any]:
        """What a machine of this kind is made with, besides what all machines share."""
        return self.operator.arguments

    def _named_connections(self) -> str | None:
        time_block = self.connections.time_block
        named = {name: connect(name, self.partition, self._lags, time_block) for name in ("all", "sequential")}
        return next((name for name, c in named.items() if c == self.connections), None)

    def _plan(self, x: Tensor, history: int = 0) -> Plan:
        steps = self.operator.time_steps(x) - history
        return self._compiled_plan_at(steps, history) if is_compiling() else self._plan_at(steps, history)

    @_constant  # a compiler is not to trace how the plan is built
    def _plan_at(self, time_steps: int, history: int) -> Plan:
        plan = make_plan(self.partition, self.connections, time_steps, history)
        # equal ones are shared: to find out in each call that many blocks are equal takes milliseconds
        if plan.connections is not self.connections or plan.partition is not self.partition:
            self.partition, self.connections = plan.partition, plan.connections
        return plan

    @_constant
    def _compiled_plan_at(self, time_steps: int, history: int) -> Plan:
        """Where a fast executor serves, compiled code calls the sweep as one operation; else it sees all steps.

        In a space that the executor does not serve, the operation runs step by step, in the precision of eager code and
        not slower than what the compiler makes of the steps, which are the library's convolutions. What is exported
        knows no executors. Asked in traced code, PyTorch 2.11 would say that all of it is exported.
        """
        plan = self._plan_at(time_steps, history)
        if torch.compiler.is_exporting() or self.executor == "torch":
            return plan
        return with_handle(self.operator, plan, self.activation)

    def _chain(self, time_steps: int) -> tuple[dict[str, Tensor], ...]:
        kept = {half: self.operator.everything(time_steps) for half in "yz"}
        chain = []
        for block in blocks_of(self._plan_at(time_steps, 0)).values():
            for half in "yz":
                kept = kept | {half: kept[half].clone()}
                self.operator.part(kept[half], block.region).fill_(False)
                chain.append(kept)
        return tuple(chain)

    def _at_once(
        self, sigma: Sigma, y0: Any, z0: Any, *, biased: bool = False, transposed: bool = False
    ) -> tuple[Tensor, Tensor] | None:
        """The solve without the checks and layers that only others than plain tensors need, where that will do."""
        parameters: Any = self._parameters
        if is_compiling() or type(y0) is not Tensor or "weight" not in parameters or "bias" not in parameters:
            return None  # a parameter that is replaced is not among them
        operator = self.operator
        if y0.ndim not in operator.ndims:
            return None
        plan = self._plan_at(operator.time_steps(y0), 0)
        bias = parameters["bias"] if biased else None
        return at_once(operator, plan.dual if transposed else plan, sigma, parameters["weight"], y0, z0, bias)

    def _bias(self, weight: Tensor) -> Tensor | None:
        bias = self._parameter("bias")
        if bias is None:
            return None
        bias = self._cast(bias)
        if bias.device != weight.device:
            raise ValueError(f"bias is on {bias.device}, the machine is on {weight.device}")
        if bias.dtype != weight.dtype:
            raise TypeError(f"bias is {bias.dtype}, the machine is {weight.dtype}")
        if bias.shape != (self.partition.total,):
            raise ValueError(f"bias has shape {tuple(bias.shape)}, the machine needs ({self.partition.total},)")
        return bias

    def _parameter(self, name: str) -> Any:
        # nn.Module's own lookup takes half a microsecond; it is still the one to ask where a parameter is replaced.
        return self._parameters[name] if name in self._parameters else getattr(self, name)

    def _points(self, **points: Tensor | None) -> list[Any]:
        """The weight and the given points, checked and cast as autocast asks.

        Inputs (y0, z0, …) may be None for zero if one of them is not; z0, dz0 and v0 are zero-extended to all channels.
        """
        operator, weight = self.operator, self._cast(self._parameter("weight"))
        if weight.shape != operator.weight_shape:
            raise ValueError(f"weight has shape {tuple(weight.shape)}, the machine needs {operator.weight_shape}")
        checked: list[Any] = [weight]
        first = shape = None
        missing: list[str] = []
        for name, x in points.items():
            if x is None and name in INPUTS:
                missing.append(name)
                checked.append(None)
                continue
            x = self._checked(name, x, weight)
            checked.append(x if name in FIRST else operator.extended(x))
            full = operator.full_shape(x)
            if shape is None:
                first, shape = name, full
            elif full != shape:
                raise ValueError(
                    f"{first} and {name} must agree in all but their channels, "
                    f"zero-extended they are {tuple(shape)} and {tuple(full)}"
                )
        if len(missing) == 2:  # both inputs of a machine
            raise ValueError(f"one of {', '.join(missing)} must be given")
        return checked

    def _checked(self, name: str, x: Tensor | None, weight: Tensor) -> Tensor:
        """x cast, or the reason why it cannot be used."""
        operator, channels = self.operator, self.partition.total
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.device != weight.device:
            raise ValueError(f"{name} is on {x.device}, the machine is on {weight.device}")
        if x.layout is not torch.strided:
            raise TypeError(f"{name} is {x.layout}, the machine needs torch.strided")
        cast = x if x.dtype is weight.dtype else self._cast(x)
        if cast.dtype != weight.dtype:
            raise TypeError(f"{name} is {x.dtype}, the machine is {weight.dtype}")
        if x.ndim not in operator.ndims:
            raise ValueError(f"{name} has shape {tuple(x.shape)}, the machine needs {operator.layout}")
        missing = channels - x.shape[operator.channel_axis]
        if missing < 0 or (missing and name not in INPUTS):
            needed = "the machine has" if missing < 0 else "it needs all"
            raise ValueError(
                f"{name} has {channels - missing} channels, {needed} {channels}: sizes={self.partition.sizes}"
            )
        return cast

    @staticmethod
    def _cast(x: Tensor) -> Tensor:
        """x in the precision autocast asks for; like autocast, float64 and integers are left alone."""
        if not _is_any_autocast_enabled():
            return x
        device = x.device.type
        if device == "meta" or not torch.is_autocast_enabled(device):
            return x
        return x.to(torch.get_autocast_dtype(device)) if x.is_floating_point() and x.dtype != torch.float64 else x
