"""What every structured machine shares: a partition, a linear operator, a pointwise σ, and the solve."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ._activation import Activations, Pointwise
from ._expansion import blocks_of, expand
from ._operators import Operator
from ._partition import Connections, Partition, connect
from ._plan import Plan, make_plan
from ._solve import solve, weight_cotangent
from ._sum import Sum

Point = Float[Tensor, "..."]


class StructuredMachine(nn.Module):
    """The machine f = W + σ on X = Y ⊕ Z, where W is read only from earlier blocks to later ones.

    A subclass brings its operator; calling the machine is its resolvent.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

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
        self.weight = nn.Parameter(torch.empty(operator.weight_shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(partition.total, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw W so that y keeps unit variance from block to block. The bias, and W where it is not read, are zero.

        Var y[c] = Var W[c, :] Σ E[σ(g)²] over the channels that feed c, with g standard normal: the block's true
        fan-in, where each channel counts as much as its activation lets through. For relu this is He's rule.
        """
        mask = self.operator.mask(self.connections.expand(self.partition))
        out_axis, in_axis = self.operator.weight_axes
        power = [a.second_moment() for a, size in self.activation.runs for _ in range(size)]
        read = mask.movedim((out_axis, in_axis), (0, 1)).flatten(2).sum(2) if mask.ndim > 2 else mask
        fan_in = (read * torch.tensor(power, device="cpu")).sum(1).clamp(min=torch.finfo(torch.float32).tiny)
        fan_in[: self.partition.sizes[0]] *= 2  # what recurs into the first block meets the input there
        scale = fan_in.rsqrt().to(self.weight).reshape(-1, *(1,) * (mask.ndim - 1 - out_axis))
        self.weight.normal_().mul_(scale).masked_fill_(~mask.to(self.weight.device), 0)
        if self.bias is not None:
            self.bias.zero_()

    @property
    def depth(self) -> int:
        """2n + 1 for the blocks I_0 … I_n."""
        return 2 * len(self.partition) - 1

    def forward(self, x: Point) -> Point:
        """The z of the resolvent at y0 = x, z0 = 0. x fills the first channels and is zero-extended."""
        return self.solve(x)[1]

    def solve(self, y0: Point, z0: Point | None = None) -> tuple[Point, Point]:
        """The resolvent: the (y, z) with y = W z + y0 + bias and z = σ(y) + z0, in one sweep over the blocks."""
        y0, z0 = self._points(y0=y0, z0=z0)
        return solve(self.operator, self._plan(y0), self.activation, self._cast(self.weight), self._add_bias(y0), z0)

    def endofunction(self, y: Point, z: Point) -> tuple[Point, Point]:
        """f(y, z) = (W z, σ(y)). `solve` inverts id - f; the bias belongs to y0."""
        y, z = self._points(y=y, z=z)
        Wz, _ = solve(self.operator, self._plan(z), None, self._cast(self.weight), None, z)
        return Wz, self.activation(y)

    def tangent(self, y: Point) -> "Derivative":
        """The derivative machine at y: dy = W dz + dy0, dz = σ'(y) ⊙ dy + dz0."""
        (y,) = self._points(y=y)
        return Derivative(self, self.activation.slope(y), transposed=False)

    def dual(self, y: Point) -> "Derivative":
        """The dual machine at y: u = W* v + u0, v = σ'(y) ⊙ u + v0."""
        return self.tangent(y).dual

    def weight_cotangent(self, v: Point, z: Point) -> Point:
        """Q = v z* summed over the batch, zero where W is not read: the cotangent of W, from the dual's v."""
        v, z = self._points(v=v, z=z)
        return weight_cotangent(self.operator, self._plan(v), v, z)

    def split(self, z: Point) -> tuple[Point, ...]:
        """The blocks of a tensor, as views."""
        axis, channels = self.operator.channel_axis, self.partition.total
        if z.shape[axis] != channels:
            raise ValueError(
                f"z has {z.shape[axis]} channels, split needs all {channels}: sizes={self.partition.sizes}"
            )
        return z.split(self.partition.sizes, dim=axis)

    def as_sum(self, prefix: str = "") -> Sum:
        """The same machine as a sum of layers z… → y_i (rows of W) and y_i → z_i (σ), of depth 2n + 1.

        Its parts are y0, z0, y1, z1, …, behind the prefix; `as_point` gives its input. Parameters are shared.
        """
        return expand(self, self._plan_at(1, 0), prefix)

    def as_point(self, y0: Point, z0: Point | None = None, prefix: str = "") -> dict[str, Tensor]:
        """(y0 + bias, z0) in the parts of `as_sum`."""
        y0, z0 = self._points(y0=y0, z0=z0)
        halves = {"y": self._add_bias(y0)} | ({} if z0 is None else {"z": z0})
        return {
            f"{prefix}{half}{name}": self.operator.part(x, block.region)
            for half, x in halves.items()
            for name, block in blocks_of(self._plan(y0)).items()
        }

    def cofiltration(self) -> tuple[dict[str, Tensor], ...]:
        """The paper's chain of length 2n + 1: which channels of y and z each V_i keeps, as masks."""
        return self._chain(1)

    def extra_repr(self) -> str:
        lags, time_block = len(self.connections.matrices) - 1, self.connections.time_block
        named = {name: connect(name, self.partition, lags, time_block) for name in ("all", "sequential")}
        counts = [sum(sum(map(sum, matrix)) for matrix in c.matrices) for c in (self.connections, named["all"])]
        connections = next((name for name, c in named.items() if c == self.connections), f"{counts[0]} of {counts[1]}")
        fields = dict(sizes=self.partition.sizes, activation=self.activation, **self.operator.arguments)
        if lags:
            fields["time_block"] = time_block
        fields |= dict(connections=connections, bias=self.bias is not None, depth=self.depth)
        return ", ".join(f"{name}={value}" for name, value in fields.items())

    def _plan(self, x: Tensor, history: int = 0) -> Plan:
        # len(range(·)) is an int, also where a compiler has a symbol for the number of steps.
        return self._plan_at(len(range(self.operator.time_steps(x) - history)), history)

    @torch.compiler.assume_constant_result  # a compiler is not to trace how the plan is built
    def _plan_at(self, time_steps: int, history: int) -> Plan:
        return make_plan(self.partition, self.connections, time_steps, history)

    def _chain(self, time_steps: int) -> tuple[dict[str, Tensor], ...]:
        kept = {half: self.operator.everything(time_steps) for half in "yz"}
        chain = []
        for block in blocks_of(self._plan_at(time_steps, 0)).values():
            for half in "yz":
                kept = kept | {half: kept[half].clone()}
                self.operator.part(kept[half], block.region).fill_(False)
                chain.append(kept)
        return tuple(chain)

    def _add_bias(self, y: Tensor) -> Tensor:
        if self.bias is None:
            return y
        return y + self._cast(self.bias).reshape(-1, *(1,) * (-1 - self.operator.channel_axis))

    def _points(self, **points: Tensor | None) -> list[Any]:
        """The given points, checked, zero-extended to all channels and cast as autocast asks; None stays None."""
        extended = {name: None if x is None else self._extend(name, x) for name, x in points.items()}
        (first, x), *others = ((name, x) for name, x in extended.items() if x is not None)
        for name, other in others:
            if other.shape != x.shape:
                raise ValueError(
                    f"{first} and {name} must agree in all but their channels, "
                    f"zero-extended they are {tuple(x.shape)} and {tuple(other.shape)}"
                )
        return list(extended.values())

    def _extend(self, name: str, x: Tensor) -> Tensor:
        operator, channels = self.operator, self.partition.total
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.device != self.weight.device:
            raise ValueError(f"{name} is on {x.device}, the machine is on {self.weight.device}")
        if self._cast(x).dtype != self._cast(self.weight).dtype:
            raise TypeError(f"{name} is {x.dtype}, the machine is {self.weight.dtype}")
        if x.ndim < operator.event_ndim or (x.ndim > operator.event_ndim + 1 and not operator.any_batch):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, the machine needs {operator.layout}")
        missing = channels - x.shape[operator.channel_axis]
        if missing < 0:
            raise ValueError(
                f"{name} has {channels - missing} channels, the machine has {channels}: sizes={self.partition.sizes}"
            )
        return self._cast(F.pad(x, (*(0, 0) * (-1 - operator.channel_axis), 0, missing)) if missing else x)

    def _cast(self, x: Tensor) -> Tensor:
        """x in the precision autocast asks for; like autocast, float64 and integers are left alone."""
        device = self.weight.device.type
        if device == "meta" or not torch.is_autocast_enabled(device):
            return x
        return x.to(torch.get_autocast_dtype(device)) if x.is_floating_point() and x.dtype != torch.float64 else x


@dataclass(frozen=True, eq=False)
class Derivative:
    """The derivative machine of a structured machine at a point, or its dual: the same solve with slopes for σ."""

    machine: StructuredMachine
    slope: Tensor
    transposed: bool

    @property
    def dual(self) -> "Derivative":
        return Derivative(self.machine, self.slope, not self.transposed)

    @property
    def _plan(self) -> Plan:
        plan = self.machine._plan(self.slope)
        return plan.dual if self.transposed else plan

    def endofunction(self, y: Point, z: Point) -> tuple[Point, Point]:
        """(W dz, σ'(y) ⊙ dy) of a tangent (dy, dz) or, for the dual, (W* v, σ'(y) ⊙ u) of a cotangent (u, v)."""
        y, z, _ = self.machine._points(y=y, z=z, slope=self.slope)
        Wz, _ = solve(self.machine.operator, self._plan, None, self.machine._cast(self.machine.weight), None, z)
        return Wz, self.slope * y

    def solve(self, y0: Point | None = None, z0: Point | None = None) -> tuple[Point, Point]:
        """(dy, dz) from (dy0, dz0) or, for the dual, (u, v) from (u0, v0); None is zero."""
        names = ("u0", "v0") if self.transposed else ("dy0", "dz0")
        if y0 is None and z0 is None:
            raise ValueError(f"one of {names[0]}, {names[1]} must be given")
        y0, z0, _ = self.machine._points(**dict(zip(names, (y0, z0), strict=True)), y=self.slope)
        return solve(self.machine.operator, self._plan, self.slope, self.machine._cast(self.machine.weight), y0, z0)
