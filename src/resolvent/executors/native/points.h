// What a sweep does to points besides products: how it begins, and σ with its slope.
#pragma once

#include <memory>

#include "program.h"

enum Sigma { NONE, FUNCTION, SLOPE, SLOPE_AT };  // 0, σ(y), slope ⊙ y, σ'(point) ⊙ y

// How large the points of one call are. The first `history` steps are given; without time, all is at step 0 of 1.
struct Extent {
    Index batch, times, history, space[3], area;  // batch: rows, one for each number of a sample; area: entries of space,
};                                                // or time steps

template <class T> struct Points {
    T *y, *z;
    const T *y0, *z0, *bias;  // or null for zero
    Index inputs;             // the first channels, which y0 has; it is zero in the others
    Sigma sigma;
    const T *point, *value;  // the slope, or the point it is taken at, and then σ(point) where it is known
    const bool* inside;      // σ is 0 where this is not true; or null for everywhere
    const Numbers* numbers;  // or null for reals
    Index size() const { return numbers ? numbers->size : 1; }  // rows of a sample
};

// z[at : at + count] += σ(y[at : at + count]), of one block.
template <class T> inline void apply(const Points<T>& p, int code, Index at, Index count) {
    for (; count > 0; at += width<T>, count -= width<T>) {
        const int lanes = count < width<T> ? count : width<T>;
        const auto read = [&](const T* x) { return lanes == width<T> ? load(x + at) : load(x + at, lanes); };
        Vector<T> s = read(p.y);
        if (p.sigma == FUNCTION) {
            s = activate<T>(code, s);
        } else {
            const bool enough = p.value && (code == TANH || code == SIGMOID);  // σ(point), without the point
            const Vector<T> x = read(enough ? p.value : p.point);
            s *= p.sigma == SLOPE ? x : slope<T>(code, x, enough ? &x : nullptr);
        }
        if (p.inside)
            for (int i = 0; i < lanes; i++) s[i] = p.inside[at + i] ? s[i] : T(0);
        s += read(p.z);
        lanes == width<T> ? store(p.z + at, s) : store(p.z + at, s, lanes);
    }
}

// The same of points over numbers, whose coefficients are `stride` apart: all of a few entries are in the cache at once.
template <class T> struct Over {
    const Points<T>& p;
    const Numbers& numbers;
    bool transposed;
    std::vector<Vector<T>> memory;
    Over(const Points<T>& p, bool transposed)
        : p(p), numbers(*p.numbers), transposed(transposed), memory(6 * numbers.size + numbers.order + 2) {}

    void apply(int code, Index at, Index count, Index stride) {
        const Index size = numbers.size;
        Vector<T>*y = memory.data(), *s = y + size, *u = s + size, *out = u + size, *power = out + size, *c = power + 2 * size;
        const bool straight = code == IDENTITY && p.sigma != SLOPE, enough = p.value && (code == TANH || code == SIGMOID);
        for (; count > 0; at += width<T>, count -= width<T>) {
            const int lanes = count < width<T> ? count : width<T>;
            const auto read = [&](const T* x, Index k) {
                return lanes == width<T> ? load(x + at + k * stride) : load(x + at + k * stride, lanes);
            };
            const Vector<T>* result = p.sigma == FUNCTION && !straight ? s : straight ? u : out;
            Vector<T>* given = p.sigma == FUNCTION && !straight ? y : u;
            for (Index k = 0; k < size; k++) given[k] = read(p.y, k);
            if (p.sigma == FUNCTION && !straight) {
                series<T>(code, y[0], nullptr, c, numbers.order);
                numbers.compose<T>(c, y, s, power);
            } else if (!straight) {
                Vector<T>* point = p.sigma == SLOPE ? s : y;
                for (Index k = 0; k < size; k++) point[k] = read(p.point, k);
                if (p.sigma == SLOPE_AT) {
                    const Vector<T> value = enough ? read(p.value, 0) : Vector<T>{};
                    series<T>(code, y[0], enough ? &value : nullptr, c, numbers.order + 1);
                    for (Index j = 0; j <= numbers.order; j++) c[j] = c[j + 1] * T(j + 1);
                    numbers.compose<T>(c, y, s, power);
                }
                numbers.image<T>(s, u, out, transposed);
            }
            for (Index k = 0; k < size; k++) {
                Vector<T> z = result[k];
                if (p.inside)
                    for (int i = 0; i < lanes; i++) z[i] = p.inside[at + k * stride + i] ? z[i] : T(0);
                z += read(p.z, k);
                lanes == width<T> ? store(p.z + at + k * stride, z) : store(p.z + at + k * stride, z, lanes);
            }
        }
    }
};

// y = y0 + bias and z = z0 in these samples, which have `rows` rows of channels: the y0 of a row are side by side
// (`area` = 1), or each channel is an area of entries with the same bias.
template <class T> void begin(const Program& f, const Points<T>& p, Range samples, Index rows, Index area) {
    const Index start = samples.first * rows, count = samples.size() * rows;
    const Index n = f.channels * area, given = p.inputs * area;
    T* y = p.y + start * n;
    if (p.z0) memcpy(p.z + start * n, p.z0 + start * n, count * n * sizeof(T));
    else memset(p.z + start * n, 0, count * n * sizeof(T));
    if (p.y0 && given == n) memcpy(y, p.y0 + start * n, count * n * sizeof(T));
    else memset(y, 0, count * n * sizeof(T));
    if (p.y0 && given < n)
        for (Index r = 0; r < count; r++) memcpy(y + r * n, p.y0 + (start + r) * given, given * sizeof(T));
    if (p.bias)  // which is real: it belongs to number 0
        for (Index r = 0; r < count; r++, y += n)
            for (Index c = 0; c < f.channels && (start + r) / rows % p.size() == 0; c++)
                for (Index i = 0; i < area; i++) y[c * area + i] += p.bias[c];
}
