// The weight's cotangent.
#pragma once

#include "sweep.h"

namespace {

// Q = v z* where W is read, whichever way the program goes. Rows of Q are shared out among the threads, each a few rows
// of one rectangle at one lag.
template <class T>
void cotangent(const Program& f, const Extent& x, const T* v, const T* z, T* Q, Index threads) {
    const bool conv = f.kind == CONVOLUTION;
    const Index n = f.channels, batch = x.batch, times = x.times, side = 16;
    memset(Q, 0, (conv ? f.taps : f.lags + 1) * n * n * sizeof(T));
    if (!batch) return;
    struct Task {
        const Rectangle* r;
        Index lag, first, last;
    };
    std::vector<Task> tasks;
    for (const Rectangle& r : f.rectangles)
        for (Index i = r.to_first; i < r.to_last; i += side)
            for (Index lag = conv ? 0 : r.lag; lag < (conv ? f.taps : r.last_lag); lag++)
                tasks.push_back({&r, lag, i, i + side < r.to_last ? i + side : r.to_last});
    threads = crew(f.work * x.area * batch, threads, tasks.size());
    if (!conv) {
        const Index sample = times * n;
        std::vector<Tap> taps;
        for (Index b = 0; b < (times == 1 ? 1 : batch); b++) taps.push_back({b * sample, b * sample});
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
        for (Index i = 0; i < Index(tasks.size()); i++) {
            const Task& task = tasks[i];
            multiply_add<T>(Q + (task.lag * n + task.first) * n + task.r->first, n, {v + task.lag * n + task.first, 1, n},
                            {z + task.r->first, 0, n}, task.last - task.first, task.r->last - task.r->first,
                            times == 1 ? batch : times - task.lag, taps.data(), times > task.lag ? taps.size() : 0);
        }
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
        for (Index r = 0; r < rows; r++) taps.push_back({b * n * x.area + r * length, (b * border.plane + border.row(r)) * n});
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
            const Index count = begin + rows_at_once < Index(taps.size()) ? rows_at_once : Index(taps.size()) - begin;
#pragma omp for schedule(dynamic)
            for (Index i = 0; i < Index(tasks.size()); i++) {
                const Task& task = tasks[i];
                const Index outputs = task.last - task.first, inputs = task.r->last - task.r->first;
                T* part = parts.data + i * side * n;
                if (!begin) memset(part, 0, outputs * inputs * sizeof(T));
                multiply_add<T>(part, inputs, {v + task.first * x.area, x.area, 1},
                                {last.data + border.offsets[task.lag] * n + task.r->first, 0, n}, outputs, inputs, length,
                                taps.data() + begin, count);
            }
        }
#pragma omp for
        for (Index i = 0; i < Index(tasks.size()); i += f.taps) {
            const Task& task = tasks[i];
            const Index first = task.r->first, inputs = task.r->last - first;
            for (Index o = task.first; o < task.last; o++)
                for (Index c = 0; c < inputs; c++)
                    for (Index tap = 0; tap < f.taps; tap++)
                        Q[(o * n + first + c) * f.taps + tap] =
                            parts.data[(i + tap) * side * n + (o - task.first) * inputs + c];
        }
    }
}

}  // namespace
