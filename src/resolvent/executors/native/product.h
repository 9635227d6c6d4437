// Vectors as wide as the processor's registers, and the one product of the library, which is made of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif

using Index = int64_t;

template <class T> struct Lanes {
    typedef T Vector __attribute__((vector_size(BYTES)));
    typedef T Unaligned __attribute__((vector_size(BYTES), aligned(alignof(T)), may_alias));
    typedef std::conditional_t<sizeof(T) == 8, int64_t, int32_t> Integers __attribute__((vector_size(BYTES)));
};
template <class T> using Vector = typename Lanes<T>::Vector;
template <class T> constexpr int width = BYTES / sizeof(T);

template <class T> inline Vector<T> load(const T* p) { return *(const typename Lanes<T>::Unaligned*)p; }
template <class T> inline void store(T* p, Vector<T> x) { *(typename Lanes<T>::Unaligned*)p = x; }

// The first `count` lanes only; memory behind them is neither read nor written.
#if defined(__AVX512F__)
inline Vector<float> load(const float* p, int count) { return _mm512_maskz_loadu_ps((1u << count) - 1, p); }
inline Vector<double> load(const double* p, int count) { return _mm512_maskz_loadu_pd((1u << count) - 1, p); }
inline void store(float* p, Vector<float> x, int count) { _mm512_mask_storeu_ps(p, (1u << count) - 1, x); }
inline void store(double* p, Vector<double> x, int count) { _mm512_mask_storeu_pd(p, (1u << count) - 1, x); }
#elif defined(__AVX2__)
inline __m256i mask(const float*, int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline __m256i mask(const double*, int count) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
}
inline Vector<float> load(const float* p, int count) { return _mm256_maskload_ps(p, mask(p, count)); }
inline Vector<double> load(const double* p, int count) { return _mm256_maskload_pd(p, mask(p, count)); }
inline void store(float* p, Vector<float> x, int count) { _mm256_maskstore_ps(p, mask(p, count), x); }
inline void store(double* p, Vector<double> x, int count) { _mm256_maskstore_pd(p, mask(p, count), x); }
#else
template <class T> inline Vector<T> load(const T* p, int count) {
    Vector<T> x = {};
    memcpy(&x, p, count * sizeof(T));
    return x;
}
template <class T> inline void store(T* p, Vector<T> x, int count) { memcpy(p, &x, count * sizeof(T)); }
#endif

struct Tap {
    Index a, b;  // where A and B begin for this tap
};

template <class T> struct Factor {
    const T* data;
    Index outer, inner;  // strides: of A along m and k, of B along k (its lanes lie side by side)
};

// The product below for M rows and N vectors or, at the tail, the first lanes of one.
template <class T, int M, int N, bool tail>
void tile(T* C, Index row, Factor<T> A, Factor<T> B, Index K, const Tap* taps, Index count, int lanes) {
    Vector<T> sum[M * N];
#pragma GCC unroll 16
    for (int i = 0; i < M * N; i++) sum[i] = tail ? load(C + i * row, lanes) : load(C + i / N * row + i % N * width<T>);
    for (Index tap = 0; tap < count; tap++) {
        const T *a = A.data + taps[tap].a, *b = B.data + taps[tap].b;
        for (Index k = 0; k < K; k++, a += A.inner, b += B.inner) {
            Vector<T> x[N];
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) x[n] = tail ? load(b, lanes) : load(b + n * width<T>);
#pragma GCC unroll 16
            for (int i = 0; i < M * N; i++) sum[i] += a[i / N * A.outer] * x[i % N];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M * N; i++)
        if (tail) store(C + i * row, sum[i], lanes);
        else store(C + i / N * row + i % N * width<T>, sum[i]);
}

template <int N> constexpr int most = N == 4 ? (BYTES == 64 ? 4 : 2) : N == 2 && BYTES < 64 ? 4 : 8;  // rows of a tile

template <class T, int N, bool tail, int rows = most<N>>
inline void column(T* C, Index row, Factor<T> A, Factor<T> B, Index M, Index K, const Tap* taps, Index count,
                   int lanes) {
    for (; M >= rows; M -= rows, C += rows * row, A.data += rows * A.outer)
        tile<T, rows, N, tail>(C, row, A, B, K, taps, count, lanes);
    if constexpr (rows > 1) column<T, N, tail, rows / 2>(C, row, A, B, M, K, taps, count, lanes);
}

// C[m, :] += Σ_tap Σ_k A[m, k, tap] B[k, tap, :] for M rows and `lanes` columns.
template <class T>
void multiply_add(T* C, Index row, Factor<T> A, Factor<T> B, Index M, Index lanes, Index K, const Tap* taps,
                  Index count) {
    constexpr int w = width<T>;
    for (; lanes >= 4 * w; lanes -= 4 * w, C += 4 * w, B.data += 4 * w)
        column<T, 4, false>(C, row, A, B, M, K, taps, count, 0);
    for (; lanes >= 2 * w; lanes -= 2 * w, C += 2 * w, B.data += 2 * w)
        column<T, 2, false>(C, row, A, B, M, K, taps, count, 0);
    for (; lanes >= w; lanes -= w, C += w, B.data += w) column<T, 1, false>(C, row, A, B, M, K, taps, count, 0);
    if (lanes) column<T, 1, true>(C, row, A, B, M, K, taps, count, lanes);
}
