// Vectors as wide as the processor's registers: loads and stores, also of the first lanes only.
#pragma once

#include <cstdint>
#include <cstring>

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

namespace {

using Index = int64_t;

template <class T> struct Lanes;
template <> struct Lanes<float> {
    typedef float Vector __attribute__((vector_size(BYTES)));
    typedef float Unaligned __attribute__((vector_size(BYTES), aligned(4), may_alias));
    typedef int32_t Integers __attribute__((vector_size(BYTES)));
    static constexpr int mantissa = 23, bias = 127, taylor = 8;
    static constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding and subtracting it rounds to an integer
    static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.428606765330187045e-06f;
    static constexpr float smallest = -87.0f, largest = 88.0f, saturated = 10.0f;
};
template <> struct Lanes<double> {
    typedef double Vector __attribute__((vector_size(BYTES)));
    typedef double Unaligned __attribute__((vector_size(BYTES), aligned(8), may_alias));
    typedef int64_t Integers __attribute__((vector_size(BYTES)));
    static constexpr int mantissa = 52, bias = 1023, taylor = 13;
    static constexpr double round = 6755399441055744.0;
    static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
    static constexpr double smallest = -708.0, largest = 709.0, saturated = 20.0;
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

}  // namespace
