// The weight's cotangent, Q = v z* where W is read, whichever way the program goes.
#pragma once

#include "sweep.h"

// Some rows of one rectangle at one lag.
struct Task {
    Index lag;
    Range out, in;
    Places Q;
};

// Q += v z* of one task, over the rows of a batch; without space.
template <class T>
void add_cotangent(const Program& f, const Extent& x, const T* v, const T* z, Index batch, const Task& task, T* Q) {
    const auto& [lag, out, in, at_Q] = task;
    const Index n = f.channels, times = x.times, sample = times * n;
    if (times <= lag) return;
    std::vector<Tap> taps;
    for (Index b = 0; b < (times == 1 ? 1 : batch); b++) taps.push_back({b * sample, b * sample});
    multiply_add<T>(Q + at_Q.first + lag * at_Q.slab + out.first * at_Q.row + in.first, at_Q.row, {v + lag * n + out.first, 1, n}, {z + in.first, 0, n},
                    out.size(), in.size(), times == 1 ? batch : times - lag, taps.data(), taps.size());
}

// Rows of Q are shared out among the threads, each time a few rows of one rectangle at one lag.
template <class T> void cotangent(const Program& f, const Extent& x, const T* v, const T* z, T* Q, Index threads) {
    const bool conv = f.kind == CONVOLUTION;
    const Index n = f.channels, batch = x.batch, side = 16;
    memset(Q, 0, product(f.weight_shape.data(), f.weight_shape.size()) * sizeof(T));
    if (!batch) return;
    std::vector<Task> tasks;
    for (const Rectangle& r : f.rectangles)
        for (Index i = r.out.first; i < r.out.last; i += side)
            for (Index lag = r.lags.first; lag < (conv ? f.taps : r.lags.last); lag++)
                tasks.push_back({lag, {i, std::min(i + side, r.out.last)}, r.in, f.places(r)});
    threads = crew(f.work * x.area * batch, threads, tasks.size());
    if (!conv) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
        for (Index i = 0; i < Index(tasks.size()); i++) add_cotangent<T>(f, x, v, z, batch, tasks[i], Q);
        return;
    }
    const Index rows = x.space[0] * x.space[1], length = x.space[2];
    const Border border(f, x, false);
    const Index plane = border.plane * n;
    const Scratch<T, LAST> last(batch * plane);  // z with a border of zeros and channels last
    const Scratch<T, PARTS> parts(tasks.size() * side * n);
    const Index bytes = length * n * sizeof(T), rows_at_once = bytes < CACHE ? CACHE / bytes : 1;
    std::vector<Tap> taps;
    for (Index b = 0; b < batch; b++)
        for (Index r = 0; r < rows; r++) taps.push_back({b * n * x.area + r * length, b * plane + border.row(r) * n});
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for
        for (Index b = 0; b < batch; b++) memset(last.data + b * plane, 0, plane * sizeof(T));
#pragma omp for
        for (Index i = 0; i < Index(taps.size()); i++) {
            T* to = last.data + taps[i].b + border.inner() * n;
            const T* from = z + taps[i].a;
            for (Index c = 0; c < n; c += 8)
                for (Index s = 0; s < length; s++)
                    for (Index cc = c; cc < n && cc < c + 8; cc++) to[s * n + cc] = from[cc * x.area + s];
        }
        for (Index begin = 0; begin < Index(taps.size()); begin += rows_at_once) {
            const Index count = std::min(rows_at_once, Index(taps.size()) - begin);
#pragma omp for schedule(dynamic)
            for (Index i = 0; i < Index(tasks.size()); i++) {
                const auto& [tap, out, in, _] = tasks[i];
                T* part = parts.data + i * side * n;
                if (!begin) memset(part, 0, out.size() * in.size() * sizeof(T));
                multiply_add<T>(part, in.size(), {v + out.first * x.area, x.area, 1},
                                {last.data + border.offsets[tap] * n + in.first, 0, n}, out.size(), in.size(), length,
                                taps.data() + begin, count);
            }
        }
#pragma omp for
        for (Index i = 0; i < Index(tasks.size()); i += f.taps) {
            const auto& [_, out, in, at_Q] = tasks[i];
            for (Index o = 0; o < out.size(); o++)
                for (Index c = 0; c < in.size(); c++)
                    for (Index tap = 0; tap < f.taps; tap++)
                        Q[(at_Q.first + (out.first + o) * at_Q.row + in.first + c) * f.taps + tap] =
                            parts.data[(i + tap) * side * n + o * in.size() + c];
        }
    }
}
