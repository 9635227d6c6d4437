"""σ beside σ', inside of kernels for GPUs."""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def _tanh(x, HALF: tl.constexpr):
    # r² = 2 / (1 + exp(2 |x|)): a division would take longer, since it checks its range first
    q, r = x * x, tl.rsqrt(0.5 + 0.5 * tl.exp2(2.8853900817779268 * tl.abs(x)))
    t = tl.where(x < 0, r * r - 1, 1 - r * r)
    # near 0 the difference 1 - r² has lost its digits, and a polynomial has not
    if HALF:  # in 16 bits, fewer digits will do
        return tl.where(q < 0.0025, x * (1 - q * (1 / 3)), t)
    near = x * (1 - q * (0.33333144 - q * (0.13325879 - q * (0.05304549 - q * 0.01724149))))  # within 1.5e-8 of tanh
    return tl.where(q < 0.25, near, t)


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _activate(x, code: tl.constexpr, HALF: tl.constexpr):
    """σ, by its place among the known activations."""
    if code == 1:
        return _tanh(x, HALF)
    if code == 2:
        return _sigmoid(x)
    if code == 3:
        return tl.where(x < 0, 0.0, x)
    if code == 4:
        return tl.where(x > 0, x, x * 0.01)
    if code == 5:
        return tl.where(x > 0, x, tl.exp(x) - 1)
    if code == 6:
        return 1.0507009873554805 * tl.where(x > 0, x, 1.6732632423543772 * (tl.exp(x) - 1))
    if code == 7:
        return x * 0.5 * (1 + tl.erf(x * 0.7071067811865476))
    if code == 8:
        return x * 0.5 * (1 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x), HALF))
    if code == 9:
        return x * _sigmoid(x)
    if code == 10:
        return tl.where(x > 20, x, tl.log(1 + tl.exp(x)))
    if code == 11:
        return x / (1 + tl.abs(x))
    if code == 12:
        return tl.sin(x)
    return x


@triton.jit
def _slope(x, s, known: tl.constexpr, code: tl.constexpr, HALF: tl.constexpr):
    """σ'(x); s is σ(x) where it is known."""
    if code == 1:
        t = s if known else _tanh(x, HALF)
        return 1 - t * t
    if code == 2:
        t = s if known else _sigmoid(x)
        return t * (1 - t)
    if code == 3:
        return tl.where(x > 0, 1.0, 0.0)
    if code == 4:
        return tl.where(x > 0, 1.0, 0.01)
    if code == 5:
        return tl.where(x > 0, 1.0, tl.exp(x))
    if code == 6:
        return 1.0507009873554805 * tl.where(x > 0, 1.0, 1.6732632423543772 * tl.exp(x))
    if code == 7:
        return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    if code == 8:
        c = tl.minimum(tl.maximum(x, -10.0), 10.0)
        t = _tanh(0.7978845608028654 * (c + 0.044715 * c * c * c), HALF)
        return 0.5 * (1 + t) + c * (1 - t * t) * 0.3989422804014327 * (1 + 0.134145 * c * c)
    if code == 9:
        t = _sigmoid(x)
        return t * (1 + x * (1 - t))
    if code == 10:
        return tl.where(x > 20, 1.0, _sigmoid(x))
    if code == 11:
        t = 1 + tl.abs(x)
        return 1 / (t * t)
    if code == 12:
        return tl.cos(x)
    return x * 0 + 1.0


@triton.jit
def sigma(x, value, code, SLOPE: tl.constexpr, CODES: tl.constexpr, KNOWN: tl.constexpr, HALF: tl.constexpr):
    """σ(x) or its slope σ'(x), by the code. Only the machine's own activations are compiled."""
    out = x * 0
    for c in tl.static_range(13):
        if (CODES >> c) & 1:
            new = _slope(x, value, KNOWN, c, HALF) if SLOPE else _activate(x, c, HALF)
            out = new if (1 << c) == CODES else tl.where(code == c, new, out)
    return out
