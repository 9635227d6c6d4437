"""Tensors over numbers: what machines, layers of PyTorch and arithmetic take where they take a tensor."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..pytorch import as_tree, is_compiling
from .numbers import REALS, Numbers


class Jet:
    """A tensor in X ⊗ A: `coefficients` (numbers, *shape) of the `numbers` A, of which the first is the value.

    It adds, multiplies, is indexed and goes through functions like a tensor; `jet["xx"]` reads a derivative. A tensor
    among jets is constant.
    """

    __array_ufunc__ = None  # so that an array from NumPy leaves arithmetic to the jet

    def __init__(self, coefficients: Tensor, numbers: Numbers):
        self.coefficients, self.numbers = coefficients, numbers

    @property
    def value(self) -> Tensor:
        return self.coefficients[0]

    @property
    def shape(self) -> torch.Size:
        return self.coefficients.shape[1:]

    @property
    def ndim(self) -> int:
        return self.coefficients.ndim - 1

    @property
    def dtype(self) -> torch.dtype:
        return self.coefficients.dtype

    @property
    def device(self) -> torch.device:
        return self.coefficients.device

    @property
    def requires_grad(self) -> bool:
        return self.coefficients.requires_grad

    def size(self, axis: int | None = None) -> Any:
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        return self.ndim

    def is_floating_point(self) -> bool:
        return True

    def detach(self) -> "Jet":
        """What autograd takes for a constant, whose derivatives by the input stay; without them it is `jet.value`."""
        return Jet(self.coefficients.detach(), self.numbers)

    def __getitem__(self, index: Any) -> Any:
        """The derivative that a text names, or some of the entries, as of a tensor."""
        if isinstance(index, str):
            return self.numbers.read(index, self.coefficients)
        return RULES["__getitem__"](None, self, index)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Any:
        return iter(self.unbind())

    def __repr__(self) -> str:
        return f"Jet of shape {tuple(self.shape)} over {self.numbers}, value={self.value}"

    def __getattr__(self, name: str) -> Any:
        """A tensor's method, as far as it has a rule."""
        function = getattr(torch.Tensor, name, None)
        if name.startswith("__") or not callable(function):
            raise AttributeError(f"a jet has no attribute {name!r}")
        rule = RULES.get(name)
        return lambda *args, **kwargs: (rule or refuse)(function, self, *args, **kwargs)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return RULES.get(function, refuse)(function, *args, **kwargs or {})


def _from_tree(children: Any, of: tuple[Numbers, int]) -> Jet:
    (coefficients,), (numbers, ndim) = children, of
    if isinstance(coefficients, Tensor) and coefficients.ndim != ndim:
        raise TypeError("vmap would map the numbers of a jet: map over points, and make the jet inside")
    return Jet(coefficients, numbers)


as_tree(Jet, lambda x: ([x.coefficients], (x.numbers, getattr(x.coefficients, "ndim", 0))), _from_tree)

RULES: dict[Any, Callable[..., Any]] = {}
"""What a function of PyTorch makes of jets, as (function, *args, **kwargs); `jets/rules.py` has them."""


def _method(name: str) -> Any:
    function = getattr(torch.Tensor, name)

    def method(self: Jet, *others: Any) -> Any:
        return RULES[name](function, self, *others)

    return method


ARITHMETIC = "add radd sub rsub mul rmul truediv rtruediv pow rpow neg abs matmul rmatmul lt le gt ge eq ne"
for _each in ARITHMETIC.split():
    setattr(Jet, f"__{_each}__", _method(f"__{_each}__"))


def refuse(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What has no rule."""
    name = getattr(function, "__name__", function)
    raise TypeError(
        f"jets have no rule for {name}{_of_layer()}: arithmetic, pointwise functions, what moves or sums entries, "
        "nn.Linear, nn.Conv*d, nn.Bilinear, machines and networks of those have one; for the rest, differentiate "
        "tensors by torch.func"
    )


def _of_layer() -> str:
    """Which module was being evaluated, for a message; compiled code does not know."""
    frame = None if is_compiling() else sys._getframe()
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, torch.nn.Module):
            return f" of {type(module).__name__}"
        frame = frame.f_back
    return ""


def common(*values: Any) -> Numbers:
    """The numbers that all jets among these have; the reals if there is no jet."""
    numbers = REALS
    for x in values:
        if type(x) is Jet:
            if not numbers.real and x.numbers is not numbers and x.numbers != numbers:
                raise ValueError(f"jets over different numbers do not mix: {numbers} and {x.numbers}")
            numbers = x.numbers
    return numbers


def lifted(x: Any, numbers: Numbers, event_ndim: int) -> Any:
    """A jet, or a constant tensor, as a tensor with an axis of numbers before the event; other things as they are."""
    if type(x) is Jet:
        return x.coefficients.movedim(0, x.ndim - min(event_ndim, x.ndim))
    return numbers.embedded(x, -1 - min(event_ndim, x.ndim)) if isinstance(x, Tensor) else x


def lowered(x: Tensor, numbers: Numbers, event_ndim: int) -> Any:
    """The way back."""
    return x if numbers.real else Jet(x.movedim(-1 - event_ndim, 0), numbers)
