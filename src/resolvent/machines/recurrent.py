from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from ..structure.activation import Pointwise
from .expansion import expand
from ..structure.lagged import Lagged
from .structured import Point, StructuredMachine
from ..structure.partition import ConnectionsLike, Partition, connect, integer
from ..sweep.solve import solve
from ..algebra.sum import Sum

State = Float[Tensor, "*batch lags channels"]


class RecurrentMachine(StructuredMachine):
    """A recurrent network with shortcuts in depth and time, on points (batch, time, channels):

        y[t] = Σ_τ W[τ] z[t - τ] + y0[t],   z[t] = σ(y[t]) + z0[t]

    Its blocks are (time block, channel block) in lexicographic order. Lag 0 carries the depth, longer lags the
    recurrence: a lag below `time_block` is read from earlier channel blocks only, longer ones between all blocks.
    `weight` is (lags + 1, channels, channels), `[lag, out, in]`.

    >>> machine = RecurrentMachine((1, 8, 8), lags=2)
    >>> x = torch.randn(4, 50, 1)
    >>> z = machine(x)
    >>> z.shape
    torch.Size([4, 50, 17])
    >>> state = machine.initial_state(4)
    >>> for t in range(50):
    ...     z_t, state = machine.step(x[:, t], state)
    >>> torch.testing.assert_close(z_t, z[:, -1])
    """

    kind = "recurrent"
    operator: Lagged

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str | Pointwise | Sequence[str | Pointwise] = "tanh",
        *,
        lags: int = 1,
        time_block: int = 1,
        bias: bool = True,
        connections: ConnectionsLike = "all",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ):
        partition = Partition(sizes)
        lags, time_block = integer("lags", lags, minimum=0), integer("time_block", time_block, minimum=1)
        super().__init__(
            Lagged(partition.total, lags),
            partition,
            activation,
            bias=bias,
            connections=connect(connections, partition, lags, time_block),
            device=device,
            dtype=dtype,
        )

    @property
    def _arguments(self) -> dict[str, Any]:
        return dict(lags=self.operator.lags, time_block=self.connections.time_block)

    def depth_at(self, time_steps: int) -> int:
        """2n + 1 for the n + 1 blocks of a sequence of that length; `depth` is that of one time block."""
        time_blocks = -(-integer("time_steps", time_steps, minimum=1) // self.connections.time_block)
        return 2 * len(self.partition) * time_blocks - 1

    def as_sum(self, time_steps: int, prefix: str = "") -> Sum:
        """The same machine, on so many steps, as a sum of layers; parts are y0.0, z0.0, …: (time block, block)."""
        return expand(self, self._plan_at(integer("time_steps", time_steps, minimum=1), 0), prefix)

    def cofiltration(self, time_steps: int) -> tuple[dict[str, Tensor], ...]:
        """The paper's chain: which (time, channel) of y and z each V_i keeps, as masks."""
        return self._chain(integer("time_steps", time_steps, minimum=1))

    def forward(self, x: Point, *, lengths: Sequence[int] | Integer[Tensor, "..."] | None = None) -> Point:
        """The z of the resolvent at y0 = x, z0 = 0."""
        return self.solve(x, lengths=lengths)[1]

    def solve(
        self,
        y0: Point,
        z0: Point | None = None,
        *,
        history: Point | None = None,
        lengths: Sequence[int] | Integer[Tensor, "..."] | None = None,
    ) -> tuple[Point, Point]:
        """The resolvent. `history` is the z of the steps before, of which the last `lags` matter; none means zeros.

        Past the `lengths` of its sequences, a batch comes out as zeros, has no influence and gets no gradient.
        """
        if history is None and lengths is None:
            return super().solve(y0, z0)
        weight, y0, z0 = self._points(y0=y0, z0=z0)
        y0 = self.operator.extended(y0, self._bias(weight))
        inside = None if lengths is None else self._inside(lengths, y0)
        if inside is not None:
            y0, z0 = y0.where(inside, 0), None if z0 is None else z0.where(inside, 0)
        past = 0
        if history is not None:
            history = self._history(history, y0)
            past = self.operator.time_steps(history)
            z0 = torch.cat([history, y0.new_zeros(y0.shape) if z0 is None else z0], -2)
            y0 = torch.cat([torch.zeros_like(history), y0], -2)
            inside = None if inside is None else torch.cat([torch.ones_like(history, dtype=torch.bool), inside], -2)
        solution = solve(self.operator, self._plan(y0, past), self.activation, weight, y0, z0, inside)
        if inside is not None:
            solution = (x.where(inside, 0) for x in solution)
        y, z = (x[..., past:, :] for x in solution)
        return y, z

    def initial_state(self, batch: int | None = None) -> State:
        """The state before the first step: the z of the last `lags` steps, all zero. No batch axis for None."""
        shape = (self.operator.lags, self.partition.total)
        return self._cast(self.weight).new_zeros(shape if batch is None else (batch, *shape))

    def step(self, x: Float[Tensor, "*batch inputs"], state: State) -> tuple[Float[Tensor, "*batch channels"], State]:
        """z of the next time step and the state after it: the numbers of the whole sequence, in constant memory."""
        if x.ndim != state.ndim - 1 or state.shape[-2] != self.operator.lags:
            raise ValueError(
                f"x has shape {tuple(x.shape)} and state {tuple(state.shape)}: a step needs (batch, inputs) and "
                f"(batch, {self.operator.lags}, {self.partition.total}), as from initial_state, or both without batch"
            )
        _, z = self.solve(x.unsqueeze(-2), history=state)
        return z.squeeze(-2), torch.cat([state, z], -2)[..., 1:, :]

    def _history(self, history: Tensor, y0: Tensor) -> Tensor:
        _, checked = self._points(history=history)
        if checked.shape[:-2] != y0.shape[:-2]:
            raise ValueError(f"history has shape {tuple(history.shape)}, y0 has the batch {tuple(y0.shape[:-2])}")
        return checked[..., max(0, checked.shape[-2] - self.operator.lags) :, :]

    def _inside(self, lengths: Sequence[int] | Tensor, y0: Tensor) -> Tensor:
        """True before each sequence's end, in the shape of y0."""
        lengths = torch.as_tensor(lengths, device=y0.device)
        lengths = lengths if lengths.numel() else lengths.long()  # an empty list is one of floats
        time_steps = y0.shape[-2]
        if lengths.dtype.is_floating_point or lengths.dtype == torch.bool or lengths.shape != y0.shape[:-2]:
            raise ValueError(
                f"lengths must be integers of shape {tuple(y0.shape[:-2])}, one for each sequence, "
                f"got {lengths.dtype} of shape {tuple(lengths.shape)}"
            )
        if not torch.compiler.is_compiling():  # looking at values would break the graph
            values = torch.func.debug_unwrap(lengths)
            out_of_range = values[(values < 0) | (values > time_steps)]
            if out_of_range.numel():
                raise ValueError(f"lengths must be from 0 to {time_steps}, got {out_of_range[0].item()}")
        return (torch.arange(time_steps, device=y0.device) < lengths.unsqueeze(-1)).unsqueeze(-1).expand(y0.shape)
