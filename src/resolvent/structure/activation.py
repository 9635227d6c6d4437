"""Pointwise activations σ, each beside its slope σ'."""

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..pytorch import has_hooks
from . import series
from .series import Series, of_slope, slope_of

Pointwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Activation:
    """A pointwise σ, σ' and all σ^(j) / j!, differentiable to any order, so every derivative of a machine is exact."""

    name: str
    function: Pointwise
    slope: Pointwise
    series: Series
    times_slope: Callable[[Tensor, Tensor], Tensor] | None = None
    """σ'(y) ⊙ u of (u, σ(y)), where that is at most one operation."""

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self):
        # A known activation travels by name: its two functions are lambdas, which pickle refuses.
        return as_activation, (self.name if ACTIVATIONS.get(self.name) is self else self.function,)

    def second_moment(self) -> float:
        """E[σ(g)²] for a standard normal g, by the midpoint rule over its quantiles."""
        quantiles = (torch.arange(2000, dtype=torch.float64, device="cpu") + 0.5) / 2000
        return self.function(torch.special.ndtri(quantiles)).square().mean().item()


ActivationLike = str | Pointwise | nn.Module | Activation


def _sigmoid_slope(y: Tensor) -> Tensor:
    s = torch.sigmoid(y)
    return s * (1 - s)


def _silu_slope(y: Tensor) -> Tensor:
    s = torch.sigmoid(y)
    return s * (1 + y * (1 - s))


def _gelu_slope(y: Tensor) -> Tensor:
    return torch.special.ndtr(y) + y * torch.exp(-y * y / 2) / math.sqrt(2 * math.pi)


def _gelu_tanh_slope(y: Tensor) -> Tensor:
    k = math.sqrt(2 / math.pi)
    y = y.clamp(-10, 10)  # the slope is 0 or 1 beyond, and in float16 the cube would overflow
    t = torch.tanh(k * (y + 0.044715 * y**3))
    return (1 + t) / 2 + y * (1 - t * t) * (k / 2) * (1 + 3 * 0.044715 * y * y)


def _selu_slope(y: Tensor) -> Tensor:
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    return scale * torch.where(y > 0, torch.ones_like(y), alpha * torch.exp(y.clamp(max=0)))


# At kinks, and where softplus switches to the identity, the slope is the one PyTorch's own backward uses.
ACTIVATIONS: dict[str, Activation] = {
    a.name: a
    for a in (
        Activation("identity", lambda y: y, torch.ones_like, series.identity, lambda u, _: u),
        Activation("tanh", torch.tanh, lambda y: 1 - torch.tanh(y).square(), series.tanh, torch.ops.aten.tanh_backward),
        Activation("sigmoid", torch.sigmoid, _sigmoid_slope, series.sigmoid, torch.ops.aten.sigmoid_backward),
        Activation("relu", torch.relu, lambda y: (y > 0).to(y.dtype), series.relu),
        Activation(
            "leaky_relu", F.leaky_relu, lambda y: torch.where(y > 0, torch.ones_like(y), 0.01), series.leaky_relu
        ),
        Activation("elu", F.elu, lambda y: torch.exp(y.clamp(max=0)), series.elu),
        Activation("selu", F.selu, _selu_slope, series.selu),
        Activation("gelu", F.gelu, _gelu_slope, series.gelu),
        Activation("gelu_tanh", lambda y: F.gelu(y, approximate="tanh"), _gelu_tanh_slope, series.gelu_tanh),
        Activation("silu", F.silu, _silu_slope, series.silu),
        Activation(
            "softplus",
            F.softplus,
            lambda y: torch.where(y > 20, torch.ones_like(y), torch.sigmoid(y)),
            series.softplus,
        ),
        Activation("softsign", F.softsign, lambda y: (1 + y.abs()) ** -2, series.softsign),
        Activation("sin", torch.sin, torch.cos, series.sin),
    )
}


MODULES: dict[tuple[type, str], str] = {
    (type(module), repr(module)): name
    for name, module in dict(
        identity=nn.Identity(),
        tanh=nn.Tanh(),
        sigmoid=nn.Sigmoid(),
        relu=nn.ReLU(),
        leaky_relu=nn.LeakyReLU(),
        elu=nn.ELU(),
        selu=nn.SELU(),
        gelu=nn.GELU(),
        gelu_tanh=nn.GELU("tanh"),
        silu=nn.SiLU(),
        softplus=nn.Softplus(),
        softsign=nn.Softsign(),
    ).items()
}
"""PyTorch's modules that are one of these."""


def out_of_place(module: nn.Module) -> nn.Module:
    """A copy of a module like `nn.ReLU(inplace=True)` that leaves its input as it is."""
    module = copy(module)
    module.inplace = False  # pyright: ignore  # an attribute of PyTorch's own modules
    return module


def as_activation(activation: ActivationLike) -> Activation:
    """The activation of that name, or a checked custom one with the slope of its derivative."""
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation {activation!r} is unknown: use one of {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[activation]
    if not callable(activation) or isinstance(activation, type):
        raise TypeError(f"activation must be a name, a function or a module, got {activation!r}")
    if isinstance(activation, nn.Module):
        activation = out_of_place(activation) if getattr(activation, "inplace", False) else activation
        if (type(activation), repr(activation)) in MODULES and not has_hooks(activation):
            return ACTIVATIONS[MODULES[type(activation), repr(activation)]]
    for known in ACTIVATIONS.values():
        if activation in (known.function, getattr(F, known.name, None)):
            return known
    name = repr(activation) if isinstance(activation, nn.Module) else getattr(activation, "__name__", repr(activation))
    if isinstance(activation, nn.Module) and any(True for _ in activation.parameters()):
        raise ValueError(f"activation {name} has parameters: only pointwise functions without parameters are allowed")
    _check_pointwise(name, activation)
    slope = slope_of(activation)
    return Activation(name, activation, slope, of_slope(activation, slope))


def _check_pointwise(name: str, function: Pointwise) -> None:
    """Raise unless function(y)[c] is a function of y[c] alone; entries are left out one side at a time to see it."""
    probe = torch.tensor([[0.5, -2.0, 1.5], [-1.0, 2.0, -0.3]], device="cpu")  # in no order along any axis
    y = probe.clone()
    z = function(y)
    if not isinstance(z, Tensor) or z.shape != y.shape:
        came = f"shape {tuple(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise ValueError(f"activation {name} must act pointwise: input of shape {tuple(y.shape)} gave {came}")
    if not torch.equal(y, probe):
        raise ValueError(f"activation {name} writes to its input: use one that returns a new tensor")
    parts = [(slice(None), slice(c, c + 1)) for c in range(3)] + [(slice(r, r + 1), slice(None)) for r in range(2)]
    if not all(torch.allclose(function(y[part].clone()), z[part], equal_nan=True) for part in parts):
        raise ValueError(f"activation {name} must act pointwise: an entry of its result depends on other entries")
