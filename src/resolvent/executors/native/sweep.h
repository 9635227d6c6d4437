// One call for one sweep: samples are independent, so threads share them out.
#pragma once

#include <memory>

#include "convolution.h"
#include "lagged.h"

// So many threads that each has enough to do to be worth waking.
Index crew(double work, Index threads, Index pieces) {
    return std::max<Index>(1, Index(std::min({work / 500000, double(threads), double(pieces)})));
}

constexpr Index NEAR = 1 << 19;  // bytes

// Memory for one call, which stays for later ones of the same thread and use unless it is many entries: fresh memory
// comes from the system page by page, which takes longer than small products.
enum Use { COPY, LAST, PARTS, DUAL };
template <class T, Use use> struct Scratch {
    std::unique_ptr<T[]> other;
    T* data;
    explicit Scratch(Index size) {
        static thread_local std::vector<T> kept;
        if (size > 1 << 22) other.reset(new T[size]);  // only what is used is ever written
        else if (Index(kept.size()) < size) kept.resize(size);
        data = other ? other.get() : kept.data();
    }
};

// So few samples that their y and z are still near when the next block reads them, or a later step the past.
template <class T> Index few_samples(const Program& f, const Extent& x, Index size) {
    const Index steps = std::min(x.times, f.lags + 2), entries = f.channels * size * steps;
    return std::max<Index>(1, NEAR / std::max<Index>(1, 2 * sizeof(T) * entries));
}

template <class T> void sweep(const Program& f, const Extent& x, const T* W, const Points<T>& p, Index threads) {
    if (!x.batch) return;
    const bool copied = f.kind != CONVOLUTION && !f.transposed;
    const Scratch<T, COPY> copy(copied ? f.entries : 0);
    if (copied) transpose(f, W, copy.data), W = copy.data;
    const Index size = p.size(), whole = x.batch / size;  // a sample's numbers stay in one thread
    threads = crew(f.work * x.area * x.batch, threads, whole);
    const Index few = few_samples<T>(f, x, size);
    const auto part = [&](const Program& f, const Extent& x, const T* W, const Points<T>& p, Range samples) {
        if (f.kind == CONVOLUTION) return sweep_conv<T>(f, x, W, p, samples);
        for (Index b = samples.first; b < samples.last; b += few * size)
            sweep_lagged<T>(f, x, W, p, {b, std::min(b + few * size, samples.last)});
    };
    if (threads == 1) return part(f, x, W, p, {0, x.batch});
    bool full = false;  // an exception must not leave a parallel region
#pragma omp parallel for num_threads(threads) reduction(|| : full)
    for (Index i = 0; i < threads; i++) {
        try {
            part(f, x, W, p, {whole * i / threads * size, whole * (i + 1) / threads * size});
        } catch (const std::exception&) {
            full = true;
        }
    }
    if (full) throw std::bad_alloc();
}
