// A sweep over time, or of dense machines, which have one step. In the product, C is y with channels last and samples
// for rows, A is z, and B is W* or W.
#pragma once

#include "points.h"

// Points (sample, time, channel); W is a copy as [lag, in, out], or [lag, out, in] where it is transposed.
template <class T> struct Recurrence {
    const Program& f;
    const T* W;
    const Points<T>& p;
    Index times;
    Range samples;
    std::vector<Tap> taps;
    Over<T>* over;  // or null for reals

    // A loop cuts its window of time steps into windows of its stride, the last maybe shorter, and runs its body in
    // each; backwards, where it is transposed. `around` is the window that was cut.
    void run(size_t begin, size_t end, Range window, Range around) {
        for (size_t i = begin; i < end; i = f.steps[i].after) {
            const Step& step = f.steps[i];
            if (step.kind == PRODUCT) {
                const Index start = step.reach == WITHIN ? around.first : 0;
                multiply(f.rectangles[step.which], {start, step.reach == UP_TO ? window.last : window.first}, window);
            } else if (step.kind == LOOP) {
                const Index count = window.size() ? (window.size() - 1) / step.which + 1 : 0;
                for (Index k = 0; k < count; k++) {
                    const Index start = window.first + (f.transposed ? count - 1 - k : k) * step.which;
                    run(i + 1, step.after, {start, start + std::min(step.which, window.last - start)}, window);
                }
            } else if (p.sigma != NONE) {
                const auto& [channels, code] = f.blocks[step.which];
                for (Index t = window.first; t < window.last; t++)
                    for (Index b = samples.first; b < samples.last; b += p.size()) {
                        const Index at = (b * times + t) * f.channels + channels.first;
                        if (over) over->apply(code, at, channels.size(), times * f.channels);
                        else apply(p, code, at, channels.size());
                    }
            }
        }
    }

    // y[window] += W z[past], one step after the other; where it is transposed, y[past] += W* z[window].
    void multiply(const Rectangle& r, Range past, Range window) {
        const Index n = f.channels, sample = times * n, sign = f.transposed ? 1 : -1;
        const Range &lags = r.lags, &to = f.to(r), &from = f.from(r);
        const Places at_W = f.transposed ? f.places(r) : f.copied_places(r);
        Range steps = window;
        if (f.transposed)  // only what some lag reaches
            steps = {std::max(past.first, window.first - lags.last + 1), std::min(past.last, window.last - lags.first)};
        for (Index t = steps.first; t < steps.last; t++) {
            const Index lag = std::max(lags.first, f.transposed ? window.first - t : t - past.last + 1);
            const Index last_lag = std::min(lags.last, f.transposed ? window.last - t : t - past.first + 1);
            const Index at = samples.first * sample + t * n;
            if (lag >= last_lag) continue;
            for (Index tau = lag; tau < last_lag; tau++)
                taps[tau - lag] = {at + sign * tau * n + from.first,
                                   at_W.first + tau * at_W.slab + from.first * at_W.row + to.first};
            multiply_add<T>(p.y + at + to.first, sample, {p.z, sample, 1}, {W, 0, at_W.row}, samples.size(), to.size(),
                            from.size(), taps.data(), last_lag - lag);
        }
    }
};

template <class T> void sweep_lagged(const Program& f, const Extent& x, const T* W, const Points<T>& p, Range samples) {
    begin(f, p, samples, x.times, 1);
    std::unique_ptr<Over<T>> over(p.numbers ? new Over<T>(p, f.transposed) : nullptr);
    Recurrence<T> recurrence{f, W, p, x.times, samples, std::vector<Tap>(f.lags + 1), over.get()};
    recurrence.run(0, f.steps.size(), {x.history, x.times}, {0, x.times});
}

// to[j, i] = from[i, j] for a square as wide as a vector: halves of ever smaller squares change places.
template <class T> inline void transpose_square(const T* from, Index row, T* to, Index to_row) {
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
            high[lane] = low[lane] + half;
        }
#pragma GCC unroll 16
        for (int i = 0; i < w; i++)
            if (!(i & half)) {
                const Vector<T> a = x[i], b = x[i + half];
                x[i] = __builtin_shuffle(a, b, low);
                x[i + half] = __builtin_shuffle(a, b, high);
            }
    }
#pragma GCC unroll 16
    for (int i = 0; i < w; i++) store(to + i * to_row, x[i]);
}

// [lag, in, out] from [lag, out, in], where it is read.
template <class T> void transpose(const Program& f, const T* W, T* to) {
    constexpr Index w = width<T>;
    for (const Rectangle& r : f.rectangles) {
        const auto& [lags, out, in, _] = r;
        const Places here = f.places(r), there = f.copied_places(r);
        for (Index lag = lags.first; lag < lags.last; lag++)
            for (Index i = out.first; i < out.last; i += w)
                for (Index j = in.first; j < in.last; j += w) {
                    const T* source = W + here.first + lag * here.slab + i * here.row + j;
                    T* target = to + there.first + lag * there.slab + j * there.row + i;
                    if (i + w <= out.last && j + w <= in.last) transpose_square(source, here.row, target, there.row);
                    else
                        for (Index b = 0; b < w && j + b < in.last; b++)
                            for (Index a = 0; a < w && i + a < out.last; a++)
                                target[b * there.row + a] = source[a * here.row + b];
                }
    }
}
