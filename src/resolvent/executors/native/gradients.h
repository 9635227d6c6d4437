// The backward pass of a solve in one call: u and v of the dual machine, and from them at once what is asked for, so that
// they never leave the cache, or at least no memory of PyTorch's is taken for them.
#pragma once

#include "cotangent.h"

// What a backward pass gives: Q and, where they are wanted, v summed for each channel, and v in the first channels.
template <class T> struct Gradients {
    T *Q, *bias, *y0;
    Index channels;  // of y0
};

template <class T> Points<T> from_row(const Points<T>& p, Index at, Index given) {
    Points<T> q = p;
    const auto move = [](auto*& x, Index by) { x = x ? x + by : nullptr; };
    move(q.y0, given), move(q.z0, at), move(q.point, at), move(q.value, at), move(q.inside, at);
    return q;
}

// The v of `count` rows, the first of which is that row of all, into the bias and y0.
template <class T>
void add_sums(const Program& f, const Extent& x, const T* v, Index row, Index count, Index size, T* bias,
              const Gradients<T>& g) {
    const Index n = f.channels, positions = f.kind == CONVOLUTION ? 1 : x.times, area = x.area / positions;
    for (Index b = 0; b < count; b++)
        for (Index t = 0; t < positions; t++) {
            const T* from = v + (b * positions + t) * n * area;
            if (bias && (row + b) % size == 0)  // the bias is real
                for (Index c = 0; c < n; c++)
                    for (Index i = 0; i < area; i++) bias[c] += from[c * area + i];
            if (g.y0)
                memcpy(g.y0 + ((row + b) * positions + t) * g.channels * area, from, g.channels * area * sizeof(T));
        }
}

template <class T>
void gradients(const Program& f, const Extent& x, const T* W, const Points<T>& p, const T* source, const Gradients<T>& g,
               Index threads) {
    const Index n = f.channels, row = n * x.area, size = p.size(), entries = product(f.weight_shape.data(), f.weight_shape.size());
    if (g.bias) memset(g.bias, 0, n * sizeof(T));
    if (f.kind == CONVOLUTION || entries * Index(sizeof(T)) > NEAR) {
        const Scratch<T, DUAL> both(2 * x.batch * row);
        Points<T> q = p;
        q.y = both.data, q.z = both.data + x.batch * row;
        sweep<T>(f, x, W, q, threads);
        cotangent<T>(f, x, q.z, source, g.Q, threads);
        return add_sums<T>(f, x, q.z, 0, x.batch, size, g.bias, g);
    }
    memset(g.Q, 0, entries * sizeof(T));
    const Index whole = x.batch / size, few = few_samples<T>(f, x, size);
    threads = crew(2 * f.work * x.area * x.batch, threads, whole);
    std::vector<T> parts((threads - 1) * (entries + n));  // each thread's own Q and bias, but for the first one's
    bool full = false;
#pragma omp parallel for num_threads(threads) reduction(|| : full) if (threads > 1)
    for (Index i = 0; i < threads; i++) {
        T* Q = i ? parts.data() + (i - 1) * (entries + n) : g.Q;
        T* bias = !g.bias ? nullptr : i ? Q + entries : g.bias;
        try {
            const Range samples = {whole * i / threads, whole * (i + 1) / threads};
            const Scratch<T, DUAL> both(2 * few * size * row);
            for (Index b = samples.first; b < samples.last; b += few) {
                const Index first = b * size, count = std::min(few, samples.last - b) * size;
                Points<T> q = from_row(p, first * row, first * x.area * p.inputs);
                q.y = both.data, q.z = both.data + few * size * row;
                sweep_lagged<T>(f, x, W, q, {0, count});
                for (const Rectangle& r : f.rectangles)
                    for (Index lag = r.lags.first; lag < r.lags.last; lag++)
                        add_cotangent<T>(f, x, q.z, source + first * row, count, {lag, r.out, r.in, f.places(r)}, Q);
                add_sums<T>(f, x, q.z, first, count, size, bias, g);
            }
        } catch (const std::exception&) {
            full = true;
        }
    }
    if (full) throw std::bad_alloc();
    for (Index i = 1; i < threads; i++) {
        const T* part = parts.data() + (i - 1) * (entries + n);
        for (Index k = 0; k < entries; k++) g.Q[k] += part[k];
        for (Index c = 0; g.bias && c < n; c++) g.bias[c] += part[entries + c];
    }
}
