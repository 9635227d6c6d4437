// Pointwise σ, each beside its slope σ'.
#pragma once

#include <cmath>

#include "product.h"

template <class T> inline Vector<T> splat(T x) { return x - Vector<T>{}; }
template <class V> inline V square(V x) { return x * x; }
template <class V> inline V decay(V t) { return t * (1 - t); }
template <class V> inline V absolute(V x) { return x < 0 ? -x : x; }

constexpr double INVERSE_FACTORIAL[] = {
    1,          1,           1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
    1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

// What e^x and tanh(x) need to know of floats and of doubles.
template <class T> struct Real {
    static constexpr bool wide = sizeof(T) == 8;
    static constexpr int mantissa = wide ? 52 : 23, bias = wide ? 1023 : 127, taylor = wide ? 13 : 8;
    static constexpr T round = wide ? 0x1.8p52 : 0x1.8p23;  // adding and subtracting it rounds to an integer
    static constexpr T ln2_high = wide ? 6.93147180369123816490e-01 : 0.693145751953125;
    static constexpr T ln2_low = wide ? 1.90821492927058770002e-10 : 1.428606765330187045e-06;
    static constexpr T smallest = wide ? -708 : -87, largest = wide ? 709 : 88, saturated = wide ? 20 : 10;
};

// e^x - less: x = k ln 2 + r with |r| <= ln(2) / 2, so e^x = 2^k (1 + p) with p = e^r - 1, which is exact also near 0.
template <class T> inline Vector<T> exp(Vector<T> x, T less = 0) {
    using R = Real<T>;
    x = x < R::smallest ? splat(R::smallest) : x;
    x = x > R::largest ? splat(R::largest) : x;
    const Vector<T> k = x * T(1.4426950408889634) + R::round - R::round;
    const Vector<T> r = x - k * R::ln2_high - k * R::ln2_low;
    Vector<T> p = splat(T(INVERSE_FACTORIAL[R::taylor]));
#pragma GCC unroll 16
    for (int i = R::taylor - 1; i > 0; i--) p = p * r + T(INVERSE_FACTORIAL[i]);
    p *= r;
    const auto power = (Vector<T>)((__builtin_convertvector(k, typename Lanes<T>::Integers) + R::bias) << R::mantissa);
    return power * p + (power - less);
}
template <class T> inline Vector<T> expm1(Vector<T> x) { return exp<T>(x, 1); }
template <class T> inline Vector<T> tanh(Vector<T> x) {
    constexpr T far = Real<T>::saturated;
    x = x > far ? splat(far) : x;
    x = x < -far ? splat(-far) : x;
    Vector<T> e = expm1<T>(x + x);
    return e / (e + 2);
}
template <class T> inline Vector<T> sigmoid(Vector<T> x) { return 1 / (1 + exp<T>(-x)); }
template <class T> inline Vector<T> each(T (*function)(T), Vector<T> x) {
    for (int i = 0; i < width<T>; i++) x[i] = function(x[i]);
    return x;
}

// In the order of `ACTIVATIONS` in `structure/activation.py`.
enum { IDENTITY, TANH, SIGMOID, RELU, LEAKY_RELU, ELU, SELU, GELU, GELU_TANH, SILU, SOFTPLUS, SOFTSIGN, SIN, CODES };

constexpr double SELU_SCALE = 1.0507009873554804934193349852946, SELU_ALPHA = 1.6732632423543772848170429916717;
constexpr double SQRT_HALF = 0.70710678118654752440, SQRT_2_OVER_PI = 0.79788456080286535588, CUBE = 0.044715;

template <class T> inline Vector<T> activate(int code, Vector<T> y) {
    const Vector<T> zero = {};
    switch (code) {
    case TANH: return tanh<T>(y);
    case SIGMOID: return sigmoid<T>(y);
    case RELU: return y < 0 ? zero : y;
    case LEAKY_RELU: return y > 0 ? y : y * T(0.01);
    case ELU: return y > 0 ? y : expm1<T>(y);
    case SELU: return T(SELU_SCALE) * (y > 0 ? y : T(SELU_ALPHA) * expm1<T>(y));
    case GELU: return y * (1 + each<T>(std::erf, y * T(SQRT_HALF))) / 2;
    case GELU_TANH: return y * (1 + tanh<T>(T(SQRT_2_OVER_PI) * (y + T(CUBE) * y * y * y))) / 2;
    case SILU: return y * sigmoid<T>(y);
    case SOFTPLUS: return y > 20 ? y : each<T>(std::log1p, exp<T>(y));
    case SOFTSIGN: return y / (1 + absolute(y));
    case SIN: return each<T>(std::sin, y);
    default: return y;
    }
}

// σ'(y); where σ(y) is already known, s is it.
template <class T> inline Vector<T> slope(int code, Vector<T> y, const Vector<T>* s) {
    const Vector<T> zero = {}, one = splat(T(1));
    switch (code) {
    case TANH: return 1 - square(s ? *s : tanh<T>(y));
    case SIGMOID: return decay(s ? *s : sigmoid<T>(y));
    case RELU: return y > 0 ? one : zero;
    case LEAKY_RELU: return y > 0 ? one : splat(T(0.01));
    case ELU: return y > 0 ? one : exp<T>(y);
    case SELU: return T(SELU_SCALE) * (y > 0 ? one : T(SELU_ALPHA) * exp<T>(y));
    case GELU: return (1 + each<T>(std::erf, y * T(SQRT_HALF))) / 2 + y * exp<T>(-y * y / 2) * T(SQRT_2_OVER_PI / 2);
    case GELU_TANH: {
        y = y > 10 ? splat(T(10)) : y < -10 ? splat(T(-10)) : y;
        Vector<T> t = tanh<T>(T(SQRT_2_OVER_PI) * (y + T(CUBE) * y * y * y));
        return (1 + t) / 2 + y * (1 - t * t) * T(SQRT_2_OVER_PI / 2) * (1 + T(3 * CUBE) * y * y);
    }
    case SILU: {
        Vector<T> t = sigmoid<T>(y);
        return t * (1 + y * (1 - t));
    }
    case SOFTPLUS: return y > 20 ? one : sigmoid<T>(y);
    case SOFTSIGN: return 1 / square(1 + absolute(y));
    case SIN: return each<T>(std::cos, y);
    default: return one;
    }
}
