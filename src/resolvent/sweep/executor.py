"""What an executor must say and do, and the list that executors enter."""

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ..structure.sigma import Sigma

if TYPE_CHECKING:  # the signatures name it
    from .system import System


class Executor(Protocol):
    """Whatever sweeps over the blocks in fewer calls than Algorithm 1. What it will not do, it answers with None."""

    __name__: str

    def serves(self, system: "System", dtype: torch.dtype, positions: int) -> bool:
        """Whether it knows the operator's form and each σ, and sweeps so many positions in this precision."""
        ...

    def sweep(
        self,
        system: "System",
        sigma: Sigma,
        weight: Tensor,
        bias: Tensor | None,
        y0: Tensor | None,
        z0: Tensor | None,
    ) -> tuple[Tensor, Tensor] | None:
        """(y, z). It looks at all that it is given."""
        ...

    def gradients(
        self,
        system: "System",
        sigma: Sigma,
        weight: Tensor,
        u0: Tensor | None,
        v0: Tensor | None,
        source: Tensor,
        by_bias: bool,
        channels: int,
    ) -> tuple[Tensor, Tensor | None, Tensor | None] | None:
        """Of the (u, v) of a dual machine: Q = v source*, the bias' cotangent, and v in so many first channels."""
        ...

    def cotangent(self, system: "System", v: Tensor, z: Tensor, weight: Tensor | None = None) -> Tensor | None:
        """Q = v z* where W is read, if v and z fit each other and the weight."""
        ...


EXECUTORS: dict[str, Any] = {}
"""By the type of device."""
