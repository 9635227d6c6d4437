from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from .. import pytorch
from ..algebra.sum import Sum
from ..machine import Point, Projection
from ..structure.activation import ActivationLike
from ..structure.connections import ConnectionsLike, connect
from ..structure.jet import Jet, common, lifted, lowered
from ..structure.lagged import Lagged
from ..structure.numbers import REALS, Numbers
from ..structure.partition import Partition, integer
from ..structure.sigma import FUNCTION, Sigma
from ..sweep.explain import explain, explain_points
from ..sweep.solve import solve
from ..sweep.steps import begin
from .expansion import expand
from .structured import Pair, StructuredMachine

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

    def __init__(
        self,
        sizes: Sequence[int],
        activation: ActivationLike | Sequence[ActivationLike] = "tanh",
        *,
        lags: int = 1,
        time_block: int = 1,
        bias: bool = True,
        connections: ConnectionsLike = "all",
        packed: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ):
        partition = Partition(sizes)
        lags, time_block = integer("lags", lags, minimum=0), integer("time_block", time_block, minimum=1)
        read = connect(connections, partition, lags, time_block)
        options: Any = dict(bias=bias, connections=read, packed=packed, device=device, dtype=dtype)
        super().__init__(Lagged(partition.total, lags), sizes, activation, **options)

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(lags=self.operator.lags, time_block=self.connections.time_block)

    def as_sum(self, time_steps: int, prefix: str = "") -> Sum:  # pyright: ignore  # it needs the steps
        """The same machine, on so many steps, as a sum of layers; parts are y0.0, z0.0, …: (time block, block)."""
        return expand(self, integer("time_steps", time_steps, minimum=1), prefix)

    def cofiltration(self, x: Point = None) -> list[Projection]:
        """The paper's chain of points like x: which (time, channel) of y and z each V_i keeps."""
        self.depth_at(x)
        return super().cofiltration(x)

    def forward(self, x: Tensor | Jet, *, lengths: Sequence[int] | Integer[Tensor, "..."] | None = None) -> Any:
        """The z of the resolvent at y0 = x + bias, z0 = 0. x has the channels of the first block, or all of them."""
        system = self._system
        if not isinstance(x, Tensor | Jet) or x.ndim not in system.operator.ndims or x.shape[-1] not in system.inputs:
            self._refuse(x)
        return self.solve(x, lengths=lengths)[1]

    def solve(
        self,
        y0: Any,
        z0: Any = None,
        *,
        history: Any = None,
        lengths: Sequence[int] | Integer[Tensor, "..."] | None = None,
    ) -> Pair:
        """The (y, z) of the machine. `history` is the z of the steps before, of which the last `lags` matter.

        Past the `lengths` of its sequences, a batch comes out as zeros, has no influence and gets no gradient.
        """
        if history is None and lengths is None:
            return super().solve(y0, z0)
        weight, bias, y0, z0 = map(pytorch.cast, (*pytorch.weight_and_bias(self), y0, z0))
        explain(self._system, Sigma(FUNCTION), weight, bias, y0, z0)
        numbers, shape = common(y0, z0, history), (z0 if y0 is None else y0).shape
        sigma, (y0, z0) = Sigma(FUNCTION, numbers=numbers), (lifted(x, numbers, 2) for x in (y0, z0))
        y0, z0 = begin(self._system, sigma, bias, y0, z0)
        inside = None if lengths is None else self._inside(lengths, y0, numbers)
        if inside is not None:
            y0, z0 = y0.where(inside, 0), z0.where(inside, 0)
        past = 0
        if history is not None:
            history = lifted(self._history(pytorch.cast(history), weight, shape), numbers, 2)
            past = self.operator.time_steps(history)
            z0 = torch.cat([history, z0], -2)
            y0 = torch.cat([torch.zeros_like(history), y0], -2)
            inside = None if inside is None else torch.cat([torch.ones_like(history, dtype=torch.bool), inside], -2)
        solution = solve(self._system, sigma._replace(inside=inside, history=past), weight, None, y0, z0)
        if inside is not None:
            solution = (x.where(inside, 0) for x in solution)
        y, z = (lowered(x[..., past:, :], numbers, 2) for x in solution)
        return y, z

    def initial_state(self, batch: int | None = None) -> State:
        """The state before the first step: the z of the last `lags` steps, all zero. No batch axis for None."""
        shape = (self.operator.lags, self.partition.total)
        return pytorch.cast(pytorch.weight_and_bias(self)[0]).new_zeros(shape if batch is None else (batch, *shape))

    def step(self, x: Float[Tensor, "*batch inputs"] | Jet, state: Any) -> tuple[Any, Any]:
        """z of the next time step and the state after it: the numbers of the whole sequence, in constant memory."""
        fits = (
            isinstance(x, Tensor | Jet)
            and isinstance(state, Tensor | Jet)
            and x.ndim == state.ndim - 1
            and x.ndim in (1, 2)
        )
        fits = fits and x.shape[-1] in self._system.inputs
        if not fits or state.shape[-2:] != (self.operator.lags, self.partition.total):
            came = [tuple(t.shape) if isinstance(t, Tensor | Jet) else type(t).__name__ for t in (x, state)]
            raise ValueError(
                f"x has shape {came[0]} and state {came[1]}: a step needs (batch, {self.partition.sizes[0]}) and "
                f"(batch, {self.operator.lags}, {self.partition.total}), as from initial_state, or both without batch"
            )
        _, z = self.solve(x.unsqueeze(-2), history=state)
        both: Any = [state, z]
        return z.squeeze(-2), torch.cat(both, -2)[..., 1:, :]

    def _history(self, history: Any, weight: Tensor, shape: torch.Size) -> Any:
        explain_points(self._system, weight, dict(history=history))
        if history.shape[:-2] != shape[:-2]:
            raise ValueError(f"history has shape {tuple(history.shape)}, y0 has the batch {tuple(shape[:-2])}")
        return history[..., max(0, history.shape[-2] - self.operator.lags) :, :]

    def _inside(self, lengths: Sequence[int] | Tensor, y0: Tensor, numbers: Numbers = REALS) -> Tensor:
        """True before each sequence's end, in the shape of y0."""
        lengths = torch.as_tensor(lengths, device=y0.device)
        lengths = lengths if lengths.numel() else lengths.long()  # an empty list is one of floats
        time_steps, batch = y0.shape[-2], y0.shape[: -2 - (not numbers.real)]
        if lengths.dtype.is_floating_point or lengths.dtype == torch.bool or lengths.shape != batch:
            raise ValueError(
                f"lengths must be integers of shape {tuple(batch)}, one for each sequence, "
                f"got {lengths.dtype} of shape {tuple(lengths.shape)}"
            )
        if not torch.compiler.is_compiling():  # looking at values would break the graph
            values = torch.func.debug_unwrap(lengths)
            out_of_range = values[(values < 0) | (values > time_steps)]
            if out_of_range.numel():
                raise ValueError(f"lengths must be from 0 to {time_steps}, got {out_of_range[0].item()}")
        inside = (torch.arange(time_steps, device=y0.device) < lengths.unsqueeze(-1)).unsqueeze(-1)
        return (inside if numbers.real else inside.unsqueeze(-3)).expand(y0.shape)
