"""The ordered partition I_0 ⊔ … ⊔ I_n of the channels."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate


def integer(name: str, value: int, minimum: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")
    return operator.index(value)


def integers(name: str, values: Sequence[int], minimum: int = 1) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of integers, got {values!r}")
    numbers = tuple(integer(f"each of {name}", value, minimum) for value in values)
    if not numbers:
        raise ValueError(f"{name} is empty: at least one integer is needed")
    return numbers


@dataclass(frozen=True, init=False)
class Partition:
    """Consecutive blocks I_0 ⊔ … ⊔ I_n of the given sizes.

    >>> Partition((2, 3)).blocks
    (slice(0, 2, None), slice(2, 5, None))
    """

    sizes: tuple[int, ...]
    total: int = field(init=False, repr=False, compare=False)
    ends: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __init__(self, sizes: Sequence[int]):
        object.__setattr__(self, "sizes", integers("sizes", sizes))
        object.__setattr__(self, "ends", tuple(accumulate(self.sizes)))
        object.__setattr__(self, "total", self.ends[-1])

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def blocks(self) -> tuple[slice, ...]:
        return tuple(map(slice, (0, *self.ends), self.ends))
