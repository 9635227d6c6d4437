"""σ beside σ', and z = σ(y) + z0, inside of kernels for GPUs."""

# pyright: basic, reportArgumentType=false, reportGeneralTypeIssues=false

import triton
import triton.language as tl


@triton.jit
def _tanh(x):
    # x P(x²) / Q(x²), within 3e-8 of tanh up to 8.3, and beyond it x / 8.3, of which ±1 remains: |tanh| > 1 would be
    # outside of what atanh and log(1 - z²) know. No exponential is waited for, and 1 / Q is the square of a reciprocal
    # root: a division takes longer, since it checks its range first.
    q = tl.minimum(x * x, 68.89)
    P = 1 + q * (0.129644632 + q * (0.00296963472 + q * (9.72075577e-06 + q * (q * 2.19740563e-11 - 1.41787613e-08))))
    r = tl.rsqrt(1 + q * (0.462977797 + q * (0.0239625257 + q * 0.000234900013)))
    return tl.clamp(x * P * (r * r), -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _activate(x, code: tl.constexpr):
    """σ, by its place among the known activations."""
    if code == 1:
        return _tanh(x)
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
        return x * 0.5 * (1 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
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
def _slope(x, s, known: tl.constexpr, code: tl.constexpr):
    """σ'(x); s is σ(x) where it is known."""
    if code == 1:
        t = s if known else _tanh(x)
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
        t = _tanh(0.7978845608028654 * (c + 0.044715 * c * c * c))
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
def sigma(x, value, code, SLOPE: tl.constexpr, CODES: tl.constexpr, KNOWN: tl.constexpr):
    """σ(x) or its slope σ'(x), by the code. Only the machine's own activations are compiled."""
    out = x * 0
    for c in tl.static_range(13):
        if (CODES >> c) & 1:
            new = _slope(x, value, KNOWN, c) if SLOPE else _activate(x, c)
            out = new if (1 << c) == CODES else tl.where(code == c, new, out)
    return out


# fmt: off
@triton.jit
def z_of(
    y, slope, shift, active, code,
    SIGMA: tl.constexpr, CODES: tl.constexpr, MASKED: tl.constexpr, HAS_Z0: tl.constexpr, dtype: tl.constexpr,
):
    # fmt: on
    """z = σ(y) + z0, of y as it is stored and as z will be."""
    y = y.to(dtype).to(tl.float32)
    if SIGMA == 0:
        s = tl.zeros_like(y)
    elif SIGMA == 1:
        s = sigma(y, y, code, False, CODES, False)
    else:
        s = slope * y
    if MASKED:
        s = tl.where(active, s, 0)
    if HAS_Z0:
        s += shift
    return s.to(dtype)
