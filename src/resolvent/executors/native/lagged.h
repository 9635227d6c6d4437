// A sweep over time, or of dense machines, which have one step. In the product, C is y with channels last and samples for
// rows, A is z, and B is W* or W.
#pragma once

#include <algorithm>

#include "points.h"
#include "product.h"

namespace {

struct Window {
    Index start, stop;  // time steps
};

// Points (sample, time, channel); W is [lag, in, out], or [lag, out, in] where it is transposed.
template <class T> struct Recurrence {
    const Program& f;
    const T* W;
    const Points<T>& p;
    Index times, first, last;  // samples
    std::vector<Tap> taps;

    // A loop cuts its window into windows of its stride, the last maybe shorter, and runs its body in each; backwards,
    // where it is transposed. `around` is the window that was cut.
    void run(size_t begin, size_t end, Window window, Window around) {
        for (size_t i = begin; i < end; i = f.steps[i].after) {
            const Step& step = f.steps[i];
            if (step.kind == Step::PRODUCT) {
                const Index start = step.reach == WITHIN ? around.start : 0;
                multiply(f.rectangles[step.which], {start, step.reach == UP_TO ? window.stop : window.start}, window);
            } else if (step.kind == Step::ACTIVATE) {
                activate(f.blocks[step.which], window);
            } else {
                const Index length = window.stop - window.start, stride = std::min(step.which, length);
                const Index count = length ? (length + stride - 1) / stride : 0;
                for (Index k = 0; k < count; k++) {
                    const Index start = window.start + (f.transposed ? count - 1 - k : k) * stride;
                    run(i + 1, step.after, {start, std::min(start + stride, window.stop)}, window);
                }
            }
        }
    }

    // y[window] += W z[past], one step after the other; where it is transposed, y[past] += W* z[window].
    void multiply(const Rectangle& r, Window past, Window window) {
        const Index n = f.channels, sample = times * n, sign = f.transposed ? 1 : -1;
        const auto [to, outputs, from, inputs] = f.channels_of(r);
        Window steps = window;
        if (f.transposed)  // only what some lag reaches
            steps = {std::max(past.start, window.start - r.last_lag + 1), std::min(past.stop, window.stop - r.lag)};
        for (Index t = steps.start; t < steps.stop; t++) {
            const Index lag = std::max(r.lag, f.transposed ? window.start - t : t - past.stop + 1);
            const Index last_lag = std::min(r.last_lag, f.transposed ? window.stop - t : t - past.start + 1);
            const Index at = first * sample + t * n;
            if (lag >= last_lag) continue;
            for (Index tau = lag; tau < last_lag; tau++)
                taps[tau - lag] = {at + sign * tau * n + from, (tau * n + from) * n + to};
            multiply_add<T>(p.y + at + to, sample, {p.z, sample, 1}, {W, 0, n}, last - first, outputs, inputs, taps.data(),
                            last_lag - lag);
        }
    }

    void activate(const Block& block, Window window) {
        if (p.sigma == NONE) return;
        const Index n = f.channels, sample = times * n, samples = last - first, width = block.last - block.first;
        for (Index t = window.start; t < window.stop; t++) {
            const Index at = first * sample + t * n + block.first;
            for (Index b = 0; b < samples; b++) apply(p, block.code, at + b * sample, width);
        }
    }
};

template <class T>
void sweep_lagged(const Program& f, const Extent& x, const T* W, const Points<T>& p, Index first, Index last) {
    begin(f, p, first, last, x.times, 1);
    Recurrence<T> recurrence{f, W, p, x.times, first, last, std::vector<Tap>(f.lags + 1)};
    recurrence.run(0, f.steps.size(), {x.history, x.times}, {0, x.times});
}

// to[j, i] = from[i, j] for a square as wide as a vector: halves of ever smaller squares change places.
template <class T> inline void transpose_square(const T* from, T* to, Index row) {
    constexpr int w = width<T>;
    Vector<T> x[w];
#pragma GCC unroll 16
    for (int i = 0; i < w; i++) x[i] = load(from + i * row);
#pragma GCC unroll 4
    for (int half = w / 2; half; half /= 2) {
        typename Lanes<T>::Integers low, high;
#pragma GCC unroll 16
        for (int lane = 0; lane < w; lane++) {
            low[lane] = lane & half ? lane - half + w : lane;
            high[lane] = lane & half ? lane + w : lane + half;
        }
#pragma GCC unroll 16
        for (int i = 0; i < w; i++)
            if (!(i & half)) {
                Vector<T> a = x[i], b = x[i + half];
                x[i] = __builtin_shuffle(a, b, low);
                x[i + half] = __builtin_shuffle(a, b, high);
            }
    }
#pragma GCC unroll 16
    for (int i = 0; i < w; i++) store(to + i * row, x[i]);
}

// [lag, in, out] from [lag, out, in], where it is read.
template <class T> void transpose(const Program& f, const T* W, T* to) {
    const Index n = f.channels;
    constexpr Index w = width<T>;
    for (const Rectangle& r : f.rectangles)
        for (Index lag = r.lag; lag < r.last_lag; lag++)
            for (Index i = r.to_first; i < r.to_last; i += w)
                for (Index j = r.first; j < r.last; j += w) {
                    const T* source = W + (lag * n + i) * n + j;
                    T* target = to + (lag * n + j) * n + i;
                    if (i + w <= r.to_last && j + w <= r.last) {
                        transpose_square(source, target, n);
                        continue;
                    }
                    for (Index jj = 0; jj < w && j + jj < r.last; jj++)
                        for (Index ii = 0; ii < w && i + ii < r.to_last; ii++) target[jj * n + ii] = source[ii * n + jj];
                }
}

}  // namespace
