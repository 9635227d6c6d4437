"""Taylor coefficients σ^(j)(a) / j! of functions of one variable, j = 0 … order, each by its differential equation.

They are made of differentiable operations, so their own derivatives are exact, too.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

Series = Callable[[Tensor, int], list[Tensor]]


def exp(a: Tensor, order: int) -> list[Tensor]:
    e = a.exp()
    return [e / math.factorial(j) for j in range(order + 1)]


def log(a: Tensor, order: int) -> list[Tensor]:
    return [a.log(), *(a**-j * ((-1) ** (j + 1) / j) for j in range(1, order + 1))]


def sin(a: Tensor, order: int) -> list[Tensor]:
    return _circle(a, order, (1, 1, -1, -1), odd=1)


def cos(a: Tensor, order: int) -> list[Tensor]:
    return _circle(a, order, (1, -1, -1, 1), odd=0)


def power(p: float | int | Tensor, a: Tensor, order: int) -> list[Tensor]:
    """Of a^p; a polynomial's end where it does, also at a = 0."""
    series, binomial = [], 1.0
    for j in range(order + 1):
        if isinstance(binomial, Tensor):
            series.append(torch.where(binomial == 0, 0, a ** (p - j) * binomial))
        else:
            series.append(a ** (p - j) * binomial if binomial else torch.zeros_like(a))
        binomial = binomial * (p - j) / (j + 1)
    return series


def exponential(base: Tensor, a: Tensor, order: int) -> list[Tensor]:
    """Of base^a; of base 0 it is 0 with its derivatives, as in PyTorch, also at a = 0."""
    log, value = torch.where(base == 0, 0, base.log()), base**a
    return [value, *(torch.where(base == 0, 0, value * log**j / math.factorial(j)) for j in range(1, order + 1))]


sqrt, reciprocal = partial(power, 0.5), partial(power, -1)


def identity(a: Tensor, order: int) -> list[Tensor]:
    return [a, torch.ones_like(a), *(torch.zeros_like(a) for _ in range(1, order))][: order + 1]


def tanh(a: Tensor, order: int) -> list[Tensor]:
    """t' = 1 - t²."""
    return _tanh_of([a, torch.ones_like(a)], order)


def sigmoid(a: Tensor, order: int) -> list[Tensor]:
    """s' = s - s²."""
    s = [a.sigmoid()]
    for j in range(order):
        s.append((s[j] - _square(s, j)) / (j + 1))
    return s


def softplus(a: Tensor, order: int) -> list[Tensor]:
    """Its slope is the sigmoid; beyond 20 PyTorch takes the identity."""
    near = [torch.nn.functional.softplus(a), *(s / (j + 1) for j, s in enumerate(sigmoid(a, order - 1)))]
    return [torch.where(a > 20, far, c) for far, c in zip(identity(a, order), near[: order + 1], strict=True)]


def silu(a: Tensor, order: int) -> list[Tensor]:
    return _times_variable(a, sigmoid(a, order))


def gelu(a: Tensor, order: int) -> list[Tensor]:
    """a Φ(a), of Φ' = φ and φ' = -a φ."""
    density = [torch.exp(-a * a / 2) / math.sqrt(2 * math.pi)]
    for j in range(order - 1):
        density.append(-(a * density[j] + density[j - 1] if j else a * density[j]) / (j + 1))
    below = [torch.special.ndtr(a), *(c / (j + 1) for j, c in enumerate(density))]
    return _times_variable(a, below[: order + 1])


def gelu_tanh(a: Tensor, order: int) -> list[Tensor]:
    """a (1 + tanh u(a)) / 2 of a cubic u; beyond ±10 it is linear, and in float16 the cube would overflow."""
    k, cube = math.sqrt(2 / math.pi), 0.044715
    b = a.clamp(-10, 10)
    t = _tanh_of(
        [k * (b + cube * b**3), k * (1 + 3 * cube * b * b), 3 * k * cube * b, k * cube * torch.ones_like(b)], order
    )
    return _times_variable(a, [(1 + t[0]) / 2, *(c / 2 for c in t[1:])])


def relu(a: Tensor, order: int) -> list[Tensor]:
    return [a.relu(), *(torch.where(a > 0, c, 0) for c in identity(a, order)[1:])]


def leaky_relu(a: Tensor, order: int) -> list[Tensor]:
    return [torch.where(a > 0, c, 0.01 * c) for c in identity(a, order)]


def elu(a: Tensor, order: int) -> list[Tensor]:
    below = exp(a.clamp(max=0), order)
    below[0] = torch.expm1(a.clamp(max=0))
    return [torch.where(a > 0, above, c) for above, c in zip(identity(a, order), below, strict=True)]


def selu(a: Tensor, order: int) -> list[Tensor]:
    scale, alpha = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
    return [scale * torch.where(a > 0, c, alpha * c) for c in elu(a, order)]


def softsign(a: Tensor, order: int) -> list[Tensor]:
    r, sign = 1 / (1 + a.abs()), -a.sign()
    return [a * r, *(r ** (j + 1) * sign ** (j - 1) for j in range(1, order + 1))]


def of_slope(function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Series:
    """Of any pointwise function, whose Jacobian is diagonal, so that J* 1 = J 1 = σ': its slope's `vjp` repeated.

    Forward mode would say J 1, but PyTorch cannot nest it in a forward-mode derivative of the machine.
    """

    def series(a: Tensor, order: int) -> list[Tensor]:
        coefficients, derivative = [function(a)], slope
        for j in range(1, order + 1):
            coefficients.append(derivative(a) / math.factorial(j))
            derivative = slope_of(derivative)
        return coefficients

    return series


def slope_of(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """σ' of any pointwise σ."""

    def slope(y: Tensor) -> Tensor:
        if torch.compiler.is_exporting():  # which would take what vjp keeps of y for a constant
            return torch.func.jvp(function, (y,), (torch.ones_like(y),))[1]
        return torch.func.vjp(function, y)[1](torch.ones_like(y))[0]

    return slope


def _circle(a: Tensor, order: int, signs: tuple[int, ...], odd: int) -> list[Tensor]:
    both = a.cos(), a.sin()
    return [both[(j + odd) % 2] * (signs[j % 4] / math.factorial(j)) for j in range(order + 1)]


def _tanh_of(u: list[Tensor], order: int) -> list[Tensor]:
    """The series of t = tanh u of a series u, by t' = (1 - t²) u'."""
    t, slopes = [u[0].tanh()], []
    for j in range(order):
        slopes.append(1 - t[0].square() if j == 0 else -_square(t, j))
        terms = [(i + 1) * u[i + 1] * slopes[j - i] for i in range(min(j + 1, len(u) - 1))]
        t.append(sum(terms[1:], terms[0]) / (j + 1))
    return t


def _square(c: list[Tensor], j: int) -> Tensor:
    """The j-th coefficient of the square of a series."""
    terms = [c[i] * c[j - i] for i in range(j + 1)]
    return sum(terms[1:], terms[0])


def _times_variable(a: Tensor, c: list[Tensor]) -> list[Tensor]:
    """The series of a σ(a)."""
    return [a * c[0], *(a * c[j] + c[j - 1] for j in range(1, len(c)))]
