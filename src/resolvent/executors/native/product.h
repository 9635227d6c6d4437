// The one product of the library, C[m, :] += Σ_tap Σ_k A[m, k, tap] B[k, tap, :], vectors along the last axis of C.
#pragma once

#include "vectors.h"

namespace {

struct Tap {
    Index a, b;  // where A and B begin for this tap
};

template <class T> struct Factor {
    const T* data;
    Index outer, inner;  // strides: of A along m and k, of B along k (its lanes lie side by side)
};

template <class T, int M, int N, bool tail>
void tile(T* C, Index row, Factor<T> A, Factor<T> B, Index K, const Tap* taps, Index count, int lanes) {
    Vector<T> sum[M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++) sum[m][n] = tail ? load(C + m * row, lanes) : load(C + m * row + n * width<T>);
    for (Index tap = 0; tap < count; tap++) {
        const T *a = A.data + taps[tap].a, *b = B.data + taps[tap].b;
        for (Index k = 0; k < K; k++, a += A.inner, b += B.inner) {
            Vector<T> x[N];
#pragma GCC unroll 4
            for (int n = 0; n < N; n++) x[n] = tail ? load(b, lanes) : load(b + n * width<T>);
#pragma GCC unroll 8
            for (int m = 0; m < M; m++)
#pragma GCC unroll 4
                for (int n = 0; n < N; n++) sum[m][n] += a[m * A.outer] * x[n];
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int n = 0; n < N; n++)
            if (tail) store(C + m * row, sum[m][n], lanes);
            else store(C + m * row + n * width<T>, sum[m][n]);
}

template <class T, int N, bool tail>
void column(T* C, Index row, Factor<T> A, Factor<T> B, Index M, Index K, const Tap* taps, Index count, int lanes) {
    constexpr int most = N == 4 ? (BYTES == 64 ? 4 : 2) : N == 2 && BYTES < 64 ? 4 : 8;
    for (; M >= most; M -= most, C += most * row, A.data += most * A.outer)
        tile<T, most, N, tail>(C, row, A, B, K, taps, count, lanes);
    if constexpr (most > 4)
        for (; M >= 4; M -= 4, C += 4 * row, A.data += 4 * A.outer)
            tile<T, 4, N, tail>(C, row, A, B, K, taps, count, lanes);
    if constexpr (most > 2)
        for (; M >= 2; M -= 2, C += 2 * row, A.data += 2 * A.outer)
            tile<T, 2, N, tail>(C, row, A, B, K, taps, count, lanes);
    for (; M; M--, C += row, A.data += A.outer) tile<T, 1, N, tail>(C, row, A, B, K, taps, count, lanes);
}

// C[m, :] += Σ_tap Σ_k A[m, k, tap] B[k, tap, :] for M rows and `lanes` columns.
template <class T>
void multiply_add(T* C, Index row, Factor<T> A, Factor<T> B, Index M, Index lanes, Index K, const Tap* taps, Index count) {
    constexpr int w = width<T>;
    for (; lanes >= 4 * w; lanes -= 4 * w, C += 4 * w, B.data += 4 * w)
        column<T, 4, false>(C, row, A, B, M, K, taps, count, 0);
    for (; lanes >= 2 * w; lanes -= 2 * w, C += 2 * w, B.data += 2 * w)
        column<T, 2, false>(C, row, A, B, M, K, taps, count, 0);
    for (; lanes >= w; lanes -= w, C += w, B.data += w) column<T, 1, false>(C, row, A, B, M, K, taps, count, 0);
    if (lanes) column<T, 1, true>(C, row, A, B, M, K, taps, count, lanes);
}

}  // namespace
