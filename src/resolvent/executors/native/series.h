// Taylor coefficients c[j] = σ^(j)(a) / j! up to an order, each by its differential equation, as in `structure/series.py`.
#pragma once

#include "activation.h"

// Σ_i a[i] b[j - i].
template <class T> inline Vector<T> convolve(const Vector<T>* a, const Vector<T>* b, int j) {
    Vector<T> sum = a[0] * b[j];
    for (int i = 1; i <= j; i++) sum += a[i] * b[j - i];
    return sum;
}

// Of a σ(a), from that of σ.
template <class T> inline void times_variable(Vector<T> a, Vector<T>* c, int order) {
    for (int j = order; j > 0; j--) c[j] = a * c[j] + c[j - 1];
    c[0] *= a;
}

template <class T> inline void sigmoid_series(Vector<T> s, Vector<T>* c, int order) {
    c[0] = s;
    for (int j = 0; j < order; j++) c[j + 1] = (c[j] - convolve<T>(c, c, j)) * (T(1) / (j + 1));
}

template <class T> inline void exp_series(Vector<T> e, Vector<T>* c, int order) {
    c[0] = e;
    for (int j = 1; j <= order; j++) c[j] = c[j - 1] * (T(1) / j);
}

constexpr int MOST_ORDER = 30;

// Where σ(a) is known and gives the rest, s is it.
template <class T> void series(int code, Vector<T> a, const Vector<T>* s, Vector<T>* c, int order) {
    const Vector<T> zero = {}, one = splat(T(1));
    const auto positive = [&](Vector<T> x, Vector<T> other) { return a > 0 ? x : other; };
    switch (code) {
    case TANH:
        c[0] = s ? *s : tanh<T>(a);
        for (int j = 0; j < order; j++) c[j + 1] = ((j ? zero : one) - convolve<T>(c, c, j)) * (T(1) / (j + 1));
        return;
    case SIGMOID: return sigmoid_series<T>(s ? *s : sigmoid<T>(a), c, order);
    case SILU:
        sigmoid_series<T>(sigmoid<T>(a), c, order);
        return times_variable<T>(a, c, order);
    case SOFTPLUS:
        if (order) sigmoid_series<T>(sigmoid<T>(a), c + 1, order - 1);
        for (int j = 1; j <= order; j++) c[j] = a > 20 ? (j > 1 ? zero : one) : c[j] * (T(1) / j);
        c[0] = activate<T>(code, a);
        return;
    case ELU:
    case SELU:
        exp_series<T>(exp<T>(positive(zero, a)), c, order);
        c[0] = expm1<T>(positive(zero, a));
        for (int j = 0; j <= order; j++) {
            const Vector<T> above = j == 0 ? a : j == 1 ? one : zero;
            c[j] = code == ELU ? positive(above, c[j]) : T(SELU_SCALE) * positive(above, T(SELU_ALPHA) * c[j]);
        }
        return;
    case GELU: {  // c[j + 1] is first the series of the density
        Vector<T> density = exp<T>(-a * a / 2) * T(SQRT_2_OVER_PI / 2), before = zero;
        for (int j = 0; j < order; j++) {
            c[j + 1] = density * (T(1) / (j + 1));
            const Vector<T> next = -(a * density + before) * (T(1) / (j + 1));
            before = density, density = next;
        }
        c[0] = (1 + each<T>(std::erf, a * T(SQRT_HALF))) / 2;
        return times_variable<T>(a, c, order);
    }
    case GELU_TANH: {
        const Vector<T> b = a > 10 ? splat(T(10)) : a < -10 ? splat(T(-10)) : a;
        constexpr T k = SQRT_2_OVER_PI, cube = CUBE;
        const Vector<T> slope[3] = {k * (1 + 3 * cube * b * b), 6 * k * cube * b, splat(3 * k * cube)};
        Vector<T> rest[MOST_ORDER + 2];  // 1 - t²
        c[0] = tanh<T>(k * (b + cube * b * b * b));
        for (int j = 0; j < order; j++) {
            rest[j] = (j ? zero : one) - convolve<T>(c, c, j);
            Vector<T> sum = slope[0] * rest[j];
            for (int i = 1; i < 3 && i <= j; i++) sum += slope[i] * rest[j - i];
            c[j + 1] = sum * (T(1) / (j + 1));
        }
        for (int j = 0; j <= order; j++) c[j] = ((j ? zero : one) + c[j]) / 2;
        return times_variable<T>(a, c, order);
    }
    case SOFTSIGN: {
        const Vector<T> r = 1 / (1 + absolute(a)), sign = a > 0 ? splat(T(-1)) : a < 0 ? one : zero;
        c[0] = a * r;
        if (order) c[1] = r * r;
        for (int j = 2; j <= order; j++) c[j] = c[j - 1] * r * sign;
        return;
    }
    case SIN: {
        const Vector<T> both[2] = {each<T>(std::sin, a), each<T>(std::cos, a)};
        T factor = 1;
        for (int j = 0; j <= order; factor /= ++j) c[j] = both[j % 2] * (j & 2 ? -factor : factor);
        return;
    }
    default:  // what is linear on each side of 0
        for (int j = 2; j <= order; j++) c[j] = zero;
        if (order) c[1] = slope<T>(code, a, nullptr);
        c[0] = activate<T>(code, a);
    }
}
