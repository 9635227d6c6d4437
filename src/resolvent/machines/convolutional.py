from collections.abc import Sequence
from typing import Any, Literal

import torch

from ..structure.activation import ActivationLike
from ..structure.connections import ConnectionsLike
from ..structure.convolution import Convolution
from ..structure.partition import Partition, integer, integers
from .structured import StructuredMachine


class ConvMachine(StructuredMachine):
    """A convolutional network with every shortcut: y = W * z + y0, z = σ(y) + z0 on points (batch, channels, *space).

    `kernel_size` has one entry for each of one to three axes (an int means one axis); `padding` is `"same"`,
    `"causal"` (one axis) or one `(before, after)` pair for each axis. `weight` is (channels, channels, *kernel_size).

    >>> machine = ConvMachine((3, 8, 8), "relu", kernel_size=(3, 3))
    >>> machine(torch.randn(2, 3, 28, 28)).shape
    torch.Size([2, 19, 28, 28])
    """

    kind = "conv"

    def __init__(
        self,
        sizes: Sequence[int],
        activation: ActivationLike | Sequence[ActivationLike] = "tanh",
        *,
        kernel_size: int | Sequence[int] = 3,
        padding: Literal["same", "causal"] | Sequence[int] | Sequence[Sequence[int]] = "same",
        bias: bool = True,
        connections: ConnectionsLike = "all",
        packed: bool = False,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ):
        axes: Any = [kernel_size] if hasattr(kernel_size, "__index__") else kernel_size
        kernel = integers("kernel_size", axes)
        if len(kernel) > 3:
            raise ValueError(f"kernel_size has {len(kernel)} axes, at most 3 are possible: {kernel}")
        operator = Convolution(Partition(sizes).total, kernel, _pairs(padding, kernel))
        options: Any = dict(bias=bias, connections=connections, packed=packed, device=device, dtype=dtype)
        super().__init__(operator, sizes, activation, **options)


def _pairs(padding: str | Sequence, kernel: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(before, after) for each axis, with before + after = kernel - 1, so that the shape is preserved."""
    if padding == "same":
        return tuple(((size - 1) // 2, size // 2) for size in kernel)
    if padding == "causal":
        if len(kernel) != 1:
            raise ValueError(f"padding='causal' is for one axis, kernel_size={kernel} has {len(kernel)}")
        return ((kernel[0] - 1, 0),)
    if isinstance(padding, str):
        raise ValueError(f"padding={padding!r} is unknown: use 'same', 'causal' or one (before, after) pair per axis")
    if not isinstance(padding, Sequence):
        raise TypeError(f"padding must be 'same', 'causal' or one (before, after) pair per axis, got {padding!r}")
    pairs = [padding] if len(kernel) == 1 and not any(isinstance(p, Sequence) for p in padding) else list(padding)
    if len(pairs) != len(kernel) or any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in pairs):
        raise ValueError(f"padding={padding!r} must be one (before, after) pair for each axis of kernel_size={kernel}")
    checked = tuple((integer("padding", before, 0), integer("padding", after, 0)) for before, after in pairs)
    for (before, after), size in zip(checked, kernel, strict=True):
        if before + after != size - 1:
            raise ValueError(
                f"padding ({before}, {after}) with a kernel of {size} would change the shape: "
                f"before + after must be {size - 1}"
            )
    return checked
