"""What stands for σ in a sweep: σ itself, slopes, or nothing; and where it acts."""

from typing import NamedTuple

from torch import Tensor

from .activations import Activations
from .numbers import REALS, Numbers

NONE, FUNCTION, SLOPE, SLOPE_AT = range(4)


class Sigma(NamedTuple):
    """Which of 0, σ(y), slope ⊙ y and σ'(point) ⊙ y is added to z0.

    It is 0 where `inside` is not True, and in the first `history` steps, which are given instead of computed.
    """

    mode: int
    point: Tensor | None = None
    """The slope, or where it is taken."""
    value: Tensor | None = None
    """σ(point) where it is known, which often gives the slope for free."""
    inside: Tensor | None = None
    history: int = 0
    numbers: Numbers = REALS

    def with_slope(self, activations: Activations) -> "Sigma":
        """The same, with a slope that is computed, as an element of the numbers, and zero outside."""
        if self.mode != SLOPE_AT or self.point is None:
            return self
        slope = activations.slope(self.point, self.numbers)
        slope = slope if self.inside is None else slope.where(self.inside, 0)
        return Sigma(SLOPE, slope, None, None, self.history, self.numbers)


ITSELF, ZERO = Sigma(FUNCTION), Sigma(NONE)
