// A sweep of convolutions. In the product, C is y with space last and channels for rows, A is W, and B is z with a
// border of zeros.
#pragma once

#include "points.h"

constexpr Index CACHE = 1 << 18;  // bytes that stay near a processor

// The border of zeros that a convolution needs around space, and where each entry of the kernel reads in it.
struct Border {
    Index before[3], size[3], plane, width;
    std::vector<Index> offsets;
    Border(const Program& f, const Extent& x, bool transposed) : width(x.space[1]) {
        for (int axis = 0; axis < 3; axis++) {
            before[axis] = transposed ? f.kernel[axis] - 1 - f.before[axis] : f.before[axis];
            size[axis] = x.space[axis] + f.kernel[axis] - 1;
        }
        if (double(size[0]) * size[1] * size[2] * f.channels * x.batch > MOST_ENTRIES) throw std::bad_alloc();
        plane = size[0] * size[1] * size[2];
        for (Index i = 0; i < f.kernel[0]; i++)
            for (Index j = 0; j < f.kernel[1]; j++)
                for (Index k = 0; k < f.kernel[2]; k++) offsets.push_back((i * size[1] + j) * size[2] + k);
    }
    Index row(Index r) const { return (r / width * size[1] + r % width) * size[2]; }
    Index inner() const { return (before[0] * size[1] + before[1]) * size[2] + before[2]; }
};

// Points (sample, channel, space); W is [out, in, kernel], of which rectangles may have strides of their own.
template <class T> void sweep_conv(const Program& f, const Extent& x, const T* W, const Points<T>& p, Range samples) {
    const Index n = f.channels, rows = x.space[0] * x.space[1], length = x.space[2];
    const Border border(f, x, f.transposed);
    const Index size = p.size();  // rows that are swept over together: those of one sample
    std::vector<T> padded(size * n * border.plane);
    std::unique_ptr<Over<T>> over(p.numbers ? new Over<T>(p, f.transposed) : nullptr);
    const auto copy = [&](Index number, const T* z, Index c) {
        T* plane = padded.data() + (number * n + c) * border.plane + border.inner();
        for (Index r = 0; r < rows; r++) memcpy(plane + border.row(r), z + c * x.area + r * length, length * sizeof(T));
    };
    // The innermost sum is over the sources; where W exceeds the cache, over a row of the kernel: it lies side by side.
    const bool by_rows = n * n * f.taps * Index(sizeof(T)) > CACHE && f.kernel[2] > 2;
    const Index side = by_rows ? f.kernel[2] : 1;
    const Index z_inner = by_rows ? 1 : border.plane;
    struct Reading {
        Index first, to, from;  // where W[0, 0] would lie, and its strides
        std::vector<Tap> taps;
    };
    std::vector<Reading> readings;
    for (const Rectangle& r : f.rectangles) {
        const Places at = f.places(r);
        const Index row = at.row * f.taps;
        Reading reading = {at.first * f.taps, f.transposed ? f.taps : row, f.transposed ? row : f.taps, {}};
        for (Index c = 0; c < (by_rows ? f.from(r).size() : 1); c++)
            for (Index tap = 0; tap < f.taps; tap += side)
                reading.taps.push_back({c * reading.from + (f.transposed ? f.taps - 1 - tap : tap),
                                        c * border.plane + border.offsets[tap]});
        readings.push_back(std::move(reading));
    }
    for (Index b = samples.first; b < samples.last; b += size) {
        const Index row_size = n * x.area, start = b * row_size;
        begin(f, p, {b, b + size}, 1, x.area);
        if (p.z0)
            for (Index i = 0; i < size * n; i++) copy(i / n, p.z + start + i / n * row_size, i % n);
        else if (b > samples.first)
            std::fill(padded.begin(), padded.end(), T(0));
        if (x.history) continue;  // all is given
        for (const Step& step : f.steps)
            if (step.kind == PRODUCT) {
                const Range &to = f.to(f.rectangles[step.which]), &from = f.from(f.rectangles[step.which]);
                const auto& [first, out, in, taps] = readings[step.which];
                const Index W_inner = !by_rows ? in : f.transposed ? -1 : 1;
                const T *A = W + first + to.first * out + from.first * in, *B = padded.data() + from.first * border.plane;
                for (Index i = 0; i < size * rows; i++) {
                    const Index number = i / rows, row = i % rows;
                    multiply_add<T>(p.y + start + number * row_size + to.first * x.area + row * length, x.area,
                                    {A, out, W_inner}, {B + number * n * border.plane + border.row(row), 0, z_inner},
                                    to.size(), length, by_rows ? side : from.size(), taps.data(), taps.size());
                }
            } else if (p.sigma != NONE) {
                const auto& [channels, code] = f.blocks[step.which];
                const Index at = start + channels.first * x.area, count = channels.size() * x.area;
                if (over) over->apply(code, at, count, row_size);
                else apply(p, code, at, count);
                for (Index number = 0; number < size; number++)
                    for (Index c = channels.first; c < channels.last; c++) copy(number, p.z + start + number * row_size, c);
            }
    }
}
