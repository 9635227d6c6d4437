// One call for one sweep, on the CPU: the steps of a plan, run in place over the points.
//
// Everything is the one product `multiply_add`, C[m, :] += Σ_tap Σ_k A[m, k, tap] B[k, tap, :], vectors along the last
// axis of C. For dense and recurrent machines C is y with channels last, A is z and B is W* or W; for convolutions C is
// y with space last, A is W and B is z with a border of zeros. Samples are independent, so threads share them out.

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

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

// ---- vectors -------------------------------------------------------------------------------------------------------

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

// ---- the product ---------------------------------------------------------------------------------------------------

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

// ---- σ and its slope -----------------------------------------------------------------------------------------------

template <class T> inline Vector<T> splat(T x) { return x - Vector<T>{}; }

constexpr double INVERSE_FACTORIAL[] = {1,          1,           1.0 / 2,       1.0 / 6,        1.0 / 24,
                                        1.0 / 120,  1.0 / 720,   1.0 / 5040,    1.0 / 40320,    1.0 / 362880,
                                        1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};

// x = k ln 2 + r with |r| <= ln(2) / 2, so that e^x = 2^k (1 + p) with p = e^r - 1, which is exact also near 0.
template <class T> inline void reduce(Vector<T> x, Vector<T>& power, Vector<T>& p) {
    using L = Lanes<T>;
    x = x < L::smallest ? splat(L::smallest) : x;
    x = x > L::largest ? splat(L::largest) : x;
    Vector<T> k = x * T(1.4426950408889634) + L::round - L::round;
    Vector<T> r = x - k * L::ln2_high - k * L::ln2_low;
    p = splat(T(INVERSE_FACTORIAL[L::taylor]));
#pragma GCC unroll 16
    for (int i = L::taylor - 1; i > 0; i--) p = p * r + T(INVERSE_FACTORIAL[i]);
    p *= r;
    power = (Vector<T>)((__builtin_convertvector(k, typename L::Integers) + L::bias) << L::mantissa);
}
template <class T> inline Vector<T> exp(Vector<T> x) {
    Vector<T> power, p;
    reduce<T>(x, power, p);
    return power + power * p;
}
template <class T> inline Vector<T> expm1(Vector<T> x) {
    Vector<T> power, p;
    reduce<T>(x, power, p);
    return power * p + (power - 1);
}
template <class T> inline Vector<T> tanh(Vector<T> x) {
    constexpr T far = Lanes<T>::saturated;
    x = x > far ? splat(far) : x;
    x = x < -far ? splat(-far) : x;
    Vector<T> e = expm1<T>(x + x);
    return e / (e + 2);
}
template <class T> inline Vector<T> sigmoid(Vector<T> x) { return 1 / (1 + exp<T>(-x)); }
template <class T> inline Vector<T> each(T (*function)(T), Vector<T> x) {
    for (int i = 0; i < width<T>; i++) x[i] = function(x[i]);
    return x;
}

// In the order of `_activation.ACTIVATIONS`.
enum { IDENTITY, TANH, SIGMOID, RELU, LEAKY_RELU, ELU, SELU, GELU, GELU_TANH, SILU, SOFTPLUS, SOFTSIGN, SIN };

constexpr double SELU_SCALE = 1.0507009873554804934193349852946, SELU_ALPHA = 1.6732632423543772848170429916717;
constexpr double SQRT_HALF = 0.70710678118654752440, SQRT_2_OVER_PI = 0.79788456080286535588, CUBE = 0.044715;

template <class T> inline Vector<T> activate(int code, Vector<T> y) {
    const Vector<T> zero = {};
    switch (code) {
    case TANH: return tanh<T>(y);
    case SIGMOID: return sigmoid<T>(y);
    case RELU: return y < 0 ? zero : y;
    case LEAKY_RELU: return y > 0 ? y : y * T(0.01);
    case ELU: return y > 0 ? y : expm1<T>(y);
    case SELU: return T(SELU_SCALE) * (y > 0 ? y : T(SELU_ALPHA) * expm1<T>(y));
    case GELU: return y * (1 + each<T>(std::erf, y * T(SQRT_HALF))) / 2;
    case GELU_TANH: return y * (1 + tanh<T>(T(SQRT_2_OVER_PI) * (y + T(CUBE) * y * y * y))) / 2;
    case SILU: return y * sigmoid<T>(y);
    case SOFTPLUS: return y > 20 ? y : each<T>(std::log1p, exp<T>(y));
    case SOFTSIGN: return y / (1 + (y < 0 ? -y : y));
    case SIN: return each<T>(std::sin, y);
    default: return y;
    }
}

// σ'(y); where σ(y) is already known, s is it.
template <class T> inline Vector<T> slope(int code, Vector<T> y, const Vector<T>* s) {
    const Vector<T> zero = {}, one = splat(T(1));
    switch (code) {
    case TANH: {
        Vector<T> t = s ? *s : tanh<T>(y);
        return 1 - t * t;
    }
    case SIGMOID: {
        Vector<T> t = s ? *s : sigmoid<T>(y);
        return t * (1 - t);
    }
    case RELU: return y > 0 ? one : zero;
    case LEAKY_RELU: return y > 0 ? one : splat(T(0.01));
    case ELU: return y > 0 ? one : exp<T>(y);
    case SELU: return T(SELU_SCALE) * (y > 0 ? one : T(SELU_ALPHA) * exp<T>(y));
    case GELU: return (1 + each<T>(std::erf, y * T(SQRT_HALF))) / 2 + y * exp<T>(-y * y / 2) * T(SQRT_2_OVER_PI / 2);
    case GELU_TANH: {
        y = y > 10 ? splat(T(10)) : y < -10 ? splat(T(-10)) : y;
        Vector<T> t = tanh<T>(T(SQRT_2_OVER_PI) * (y + T(CUBE) * y * y * y));
        return (1 + t) / 2 + y * (1 - t * t) * T(SQRT_2_OVER_PI / 2) * (1 + T(3 * CUBE) * y * y);
    }
    case SILU: {
        Vector<T> t = sigmoid<T>(y);
        return t * (1 + y * (1 - t));
    }
    case SOFTPLUS: return y > 20 ? one : sigmoid<T>(y);
    case SOFTSIGN: {
        Vector<T> t = 1 + (y < 0 ? -y : y);
        return 1 / (t * t);
    }
    case SIN: return each<T>(std::cos, y);
    default: return one;
    }
}

// ---- a sweep -------------------------------------------------------------------------------------------------------

// A program as `_native.py` writes it: this header, then the steps, then the rectangles of W that are read.
struct Header {
    Index conv, weight_axes, transposed, channels, times, lags, kernel[3], space[3], before[3], work, steps, rectangles;
};
struct Step {
    Index product, to_start, to_stop, to_first, to_last, start, stop, first, last, lag, last_lag;  // or `first` = block
};
struct Rectangle {
    Index lag, last_lag, to_first, to_last, first, last;
};
struct Program : Header {
    const Step* step;
    const Rectangle* rectangle;
    Index taps, area;  // entries of the kernel; entries of space, or time steps
    explicit Program(const char* bytes) : Header(*(const Header*)bytes) {
        step = (const Step*)(bytes + sizeof(Header));
        rectangle = (const Rectangle*)(step + steps);
        taps = kernel[0] * kernel[1] * kernel[2];
        area = conv ? space[0] * space[1] * space[2] : times;
    }
};

enum Sigma { NONE, FUNCTION, SLOPE, SLOPE_AT };  // 0, σ(y), slope ⊙ y, σ'(point) ⊙ y

template <class T> struct Points {
    T *y, *z;
    const T *y0, *z0, *bias;  // or null for zero
    Index inputs;             // the first channels, which y0 has; it is zero in the others
    Sigma sigma;
    const unsigned char* codes;
    const T *point, *value;  // the slope, or the point it is taken at, and σ(point) where it is known
    const bool* inside;      // σ is 0 where this is not true; or null for everywhere
};

// z[at : at + count] += σ(y[at : at + count]), of one block.
template <class T> inline void apply(const Points<T>& p, int block, Index at, Index count) {
    const int code = p.codes ? p.codes[block] : 0;
    for (; count > 0; at += width<T>, count -= width<T>) {
        int lanes = count < width<T> ? count : width<T>;
        bool full = lanes == width<T>;
        Vector<T> y = full ? load(p.y + at) : load(p.y + at, lanes), s;
        if (p.sigma == FUNCTION) {
            s = activate<T>(code, y);
        } else {
            const bool enough = p.value && (code == TANH || code == SIGMOID);  // σ(point), without the point
            const T* from = (enough ? p.value : p.point) + at;
            const Vector<T> x = full ? load(from) : load(from, lanes);
            s = y * (p.sigma == SLOPE ? x : slope<T>(code, x, enough ? &x : nullptr));
        }
        if (p.inside)
            for (int i = 0; i < lanes; i++) s[i] = p.inside[at + i] ? s[i] : T(0);
        if (full) store(p.z + at, load(p.z + at) + s);
        else store(p.z + at, load(p.z + at, lanes) + s, lanes);
    }
}

// y = y0 + bias and z = z0 in the samples from `first` to `last`, which have `rows` rows of channels: the y0 of a row are
// side by side (`area` = 1), or each channel is an area of entries with the same bias.
template <class T> void begin(const Program& f, const Points<T>& p, Index first, Index last, Index rows, Index area) {
    const Index n = f.channels * area, given = p.inputs * area;
    T *y = p.y + first * rows * n, *z = p.z + first * rows * n;
    const Index count = (last - first) * rows;
    if (p.z0) memcpy(z, p.z0 + first * rows * n, count * n * sizeof(T));
    else memset(z, 0, count * n * sizeof(T));
    if (p.y0 && given == n) memcpy(y, p.y0 + first * rows * n, count * n * sizeof(T));
    else memset(y, 0, count * n * sizeof(T));
    if (p.y0 && given < n)
        for (Index r = 0; r < count; r++) memcpy(y + r * n, p.y0 + (first * rows + r) * given, given * sizeof(T));
    if (p.bias)
        for (Index r = 0; r < count; r++, y += n)
            for (Index c = 0; c < f.channels; c++)
                for (Index i = 0; i < area; i++) y[c * area + i] += p.bias[c];
}

// Points (sample, time, channel); W is [lag, in, out], or [lag, out, in] where it is transposed.
template <class T> void sweep_lagged(const Program& f, const T* W, const Points<T>& p, Index first, Index last) {
    const Index n = f.channels, sample = f.times * n;
    std::vector<Tap> taps(f.lags);
    begin(f, p, first, last, f.times, 1);
    for (const Step* step = f.step; step < f.step + f.steps; step++)
        for (Index t = step->to_start; t < step->to_stop; t++) {
            const Index at = first * sample + t * n;
            if (!step->product) {
                if (p.sigma != NONE)
                    for (Index b = 0; b < last - first; b++)
                        apply(p, step->first, at + b * sample + step->to_first, step->to_last - step->to_first);
                continue;
            }
            Index count = 0;
            for (Index lag = step->lag; lag < step->last_lag; lag++) {
                Index source = f.transposed ? t + lag : t - lag;
                if (source >= step->start && source < step->stop)
                    taps[count++] = {first * sample + source * n + step->first, (lag * n + step->first) * n + step->to_first};
            }
            multiply_add<T>(p.y + at + step->to_first, sample, {p.z, sample, 1}, {W, 0, n}, last - first,
                            step->to_last - step->to_first, step->last - step->first, taps.data(), count);
        }
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
    for (const Rectangle* r = f.rectangle; r < f.rectangle + f.rectangles; r++)
        for (Index lag = r->lag; lag < r->last_lag; lag++)
            for (Index i = r->to_first; i < r->to_last; i += w)
                for (Index j = r->first; j < r->last; j += w) {
                    const T* source = W + (lag * n + i) * n + j;
                    T* target = to + (lag * n + j) * n + i;
                    if (i + w <= r->to_last && j + w <= r->last) {
                        transpose_square(source, target, n);
                        continue;
                    }
                    for (Index jj = 0; jj < w && j + jj < r->last; jj++)
                        for (Index ii = 0; ii < w && i + ii < r->to_last; ii++) target[jj * n + ii] = source[ii * n + jj];
                }
}

constexpr Index CACHE = 1 << 18;  // bytes that stay near a processor

// The border of zeros that a convolution needs around space, and where each entry of the kernel reads in it.
struct Border {
    Index before[3], size[3], plane;
    std::vector<Index> offsets;
    explicit Border(const Program& f) {
        for (int axis = 0; axis < 3; axis++) {
            before[axis] = f.transposed ? f.kernel[axis] - 1 - f.before[axis] : f.before[axis];
            size[axis] = f.space[axis] + f.kernel[axis] - 1;
        }
        plane = size[0] * size[1] * size[2];
        for (Index i = 0; i < f.kernel[0]; i++)
            for (Index j = 0; j < f.kernel[1]; j++)
                for (Index k = 0; k < f.kernel[2]; k++) offsets.push_back((i * size[1] + j) * size[2] + k);
    }
    Index row(const Program& f, Index r) const { return (r / f.space[1] * size[1] + r % f.space[1]) * size[2]; }
    Index inner() const { return (before[0] * size[1] + before[1]) * size[2] + before[2]; }
};

// Points (sample, channel, space); W is [out, in, kernel].
template <class T> void sweep_conv(const Program& f, const T* W, const Points<T>& p, Index first, Index last) {
    const Index n = f.channels, rows = f.space[0] * f.space[1], length = f.space[2];
    const Border border(f);
    std::vector<T> padded(n * border.plane);
    const auto copy = [&](const T* z, Index c) {
        T* plane = padded.data() + c * border.plane + border.inner();
        for (Index r = 0; r < rows; r++) memcpy(plane + border.row(f, r), z + c * f.area + r * length, length * sizeof(T));
    };
    const Index out = f.transposed ? f.taps : n * f.taps, in = f.transposed ? n * f.taps : f.taps;  // strides of W
    // The innermost sum is over the sources; where W exceeds the cache, over a row of the kernel, which lies side by side.
    const bool by_rows = n * n * f.taps * Index(sizeof(T)) > CACHE && f.kernel[2] > 2;
    const Index side = by_rows ? f.kernel[2] : 1, per_source = f.taps / side;
    const Index W_inner = !by_rows ? in : f.transposed ? -1 : 1, z_inner = by_rows ? 1 : border.plane;
    std::vector<Tap> taps;
    for (Index c = 0; c < (by_rows ? n : 1); c++)
        for (Index tap = 0; tap < f.taps; tap += side)
            taps.push_back({c * in + (f.transposed ? f.taps - 1 - tap : tap), c * border.plane + border.offsets[tap]});
    for (Index b = first; b < last; b++) {
        const Index at = b * n * f.area;
        begin(f, p, b, b + 1, 1, f.area);
        if (p.z0)
            for (Index c = 0; c < n; c++) copy(p.z + at, c);
        for (const Step* step = f.step; step < f.step + f.steps; step++)
            if (step->product) {
                const Index sources = step->last - step->first, start = by_rows ? 0 : step->first;
                const Tap* tap = taps.data() + (by_rows ? step->first * per_source : 0);
                for (Index r = 0; r < rows; r++)
                    multiply_add<T>(p.y + at + step->to_first * f.area + r * length, f.area,
                                    {W + step->to_first * out + start * in, out, W_inner},
                                    {padded.data() + start * border.plane + border.row(f, r), 0, z_inner},
                                    step->to_last - step->to_first, length, by_rows ? side : sources, tap,
                                    by_rows ? sources * per_source : f.taps);
            } else if (p.sigma != NONE) {
                apply(p, step->first, at + step->to_first * f.area, (step->to_last - step->to_first) * f.area);
                for (Index c = step->to_first; c < step->to_last; c++) copy(p.z + at, c);
            }
    }
}

// So many threads that each has enough to do to be worth waking.
Index crew(double work, Index threads, Index pieces) {
    Index useful = work / 500000;
    threads = threads < useful ? threads : useful;
    threads = threads < pieces ? threads : pieces;
    return threads < 1 ? 1 : threads;
}

constexpr Index KEPT = 1 << 22;  // entries

// Memory for one call, which stays for later ones of the same thread and use unless it is larger than KEPT: fresh memory
// comes from the system page by page, which takes longer than small products.
enum Use { COPY, LAST, PARTS };
template <class T, Use use> struct Scratch {
    std::unique_ptr<T[]> other;
    T* data;
    explicit Scratch(Index size) {
        static thread_local std::vector<T> kept;
        if (size > KEPT) other.reset(new T[size]);  // only what is used is ever written
        else if (Index(kept.size()) < size) kept.resize(size);
        data = other ? other.get() : kept.data();
    }
};

template <class T> void sweep(const Program& f, const T* W, const Points<T>& p, Index batch, Index threads) {
    const bool copied = !f.conv && !f.transposed;
    const Scratch<T, COPY> copy(copied ? f.lags * f.channels * f.channels : 0);
    if (copied) {
        transpose(f, W, copy.data);
        W = copy.data;
    }
    threads = crew(double(f.work) * batch, threads, batch);
    const auto part = f.conv ? sweep_conv<T> : sweep_lagged<T>;
    if (threads == 1) return part(f, W, p, 0, batch);
    bool full = false;  // an exception must not leave a parallel region
#pragma omp parallel for num_threads(threads) reduction(|| : full)
    for (Index i = 0; i < threads; i++) {
        try {
            part(f, W, p, batch * i / threads, batch * (i + 1) / threads);
        } catch (const std::bad_alloc&) {
            full = true;
        }
    }
    if (full) throw std::bad_alloc();
}

// ---- the weight's cotangent ----------------------------------------------------------------------------------------

// Q = v z* where W is read. Rows of Q are shared out among the threads, each a few rows of one rectangle at one lag.
template <class T> void cotangent(const Program& f, const T* v, const T* z, T* Q, Index batch, Index threads) {
    const Index n = f.channels, lags = f.conv ? f.taps : f.lags, side = 16;
    memset(Q, 0, lags * n * n * sizeof(T));
    if (!batch) return;
    struct Task {
        const Rectangle* r;
        Index lag, first, last;
    };
    std::vector<Task> tasks;
    for (const Rectangle* r = f.rectangle; r < f.rectangle + f.rectangles; r++)
        for (Index i = r->to_first; i < r->to_last; i += side)
            for (Index lag = f.conv ? 0 : r->lag; lag < (f.conv ? f.taps : r->last_lag); lag++)
                tasks.push_back({r, lag, i, i + side < r->to_last ? i + side : r->to_last});
    threads = crew(double(f.work) * batch, threads, tasks.size());
    if (!f.conv) {
        const Index sample = f.times * n;
        std::vector<Tap> taps;
        for (Index b = 0; b < (f.times == 1 ? 1 : batch); b++) taps.push_back({b * sample, b * sample});
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
        for (Index i = 0; i < Index(tasks.size()); i++) {
            const Task& task = tasks[i];
            multiply_add<T>(Q + (task.lag * n + task.first) * n + task.r->first, n, {v + task.lag * n + task.first, 1, n},
                            {z + task.r->first, 0, n}, task.last - task.first, task.r->last - task.r->first,
                            f.times == 1 ? batch : f.times - task.lag, taps.data(), f.times > task.lag ? taps.size() : 0);
        }
        return;
    }
    const Index rows = f.space[0] * f.space[1], length = f.space[2];
    const Border border(f);
    const Index plane = border.plane * n;
    const Scratch<T, LAST> last(batch * plane);  // z with a border of zeros and channels last
    const Scratch<T, PARTS> parts(tasks.size() * side * n);
    const Index bytes = length * n * sizeof(T), rows_at_once = bytes < CACHE ? CACHE / bytes : 1;
    std::vector<Tap> taps;
    for (Index b = 0; b < batch; b++)
        for (Index r = 0; r < rows; r++) taps.push_back({b * n * f.area + r * length, (b * border.plane + border.row(f, r)) * n});
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#pragma omp for
        for (Index b = 0; b < batch; b++) memset(last.data + b * plane, 0, plane * sizeof(T));
#pragma omp for
        for (Index i = 0; i < Index(taps.size()); i++) {
            T* to = last.data + taps[i].b + border.inner() * n;
            const T* from = z + taps[i].a;
            for (Index c = 0; c < n; c += 8)
                for (Index x = 0; x < length; x++)
                    for (Index cc = c; cc < n && cc < c + 8; cc++) to[x * n + cc] = from[cc * f.area + x];
        }
        for (Index begin = 0; begin < Index(taps.size()); begin += rows_at_once) {
            const Index count = begin + rows_at_once < Index(taps.size()) ? rows_at_once : Index(taps.size()) - begin;
#pragma omp for schedule(dynamic)
            for (Index i = 0; i < Index(tasks.size()); i++) {
                const Task& task = tasks[i];
                const Index outputs = task.last - task.first, inputs = task.r->last - task.r->first;
                T* part = parts.data + i * side * n;
                if (!begin) memset(part, 0, outputs * inputs * sizeof(T));
                multiply_add<T>(part, inputs, {v + task.first * f.area, f.area, 1},
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

// ---- tensors -------------------------------------------------------------------------------------------------------

// What DLPack 1.3 fixes for exchange between libraries in one process: how PyTorch shows a tensor.
struct View {
    void* data;
    int32_t device, device_index, ndim;
    uint8_t kind, bits;
    uint16_t lanes;
    Index *shape, *strides;
    uint64_t offset;
};
struct Exchange {
    uint32_t major, minor;
    void* older;
    void *allocate, *from_object, *to_object;  // not used: tensors made so cannot be resized
    int (*view)(PyObject* object, View*);
};
enum { CPU = 1, FLOAT = 2, BOOL = 6 };

const Exchange* exchange;
PyObject *tensor_type, *parameter_type, *new_empty, *is_neg, *float_types[2];
PyObject *empty_strided, *deterministic;  // PyTorch's shortest way to memory, and whether it is to be filled; or null

bool connect() {
    PyObject *core = PyImport_ImportModule("torch._C"), *guards = PyImport_ImportModule("torch._C._dynamo.guards");
    if (!guards) PyErr_Clear();
    deterministic = core ? PyObject_GetAttrString(core, "_get_deterministic_algorithms") : nullptr;
    if (!deterministic) PyErr_Clear();
    empty_strided = guards && deterministic ? PyObject_GetAttrString(guards, "_empty_strided_cpu") : nullptr;
    if (!empty_strided) PyErr_Clear();
    Py_XDECREF(guards), Py_XDECREF(core);
    PyObject *torch = PyImport_ImportModule("torch"), *nn = PyImport_ImportModule("torch.nn"), *capsule = nullptr;
    if (torch && nn && (tensor_type = PyObject_GetAttrString(torch, "Tensor")) &&
        (parameter_type = PyObject_GetAttrString(nn, "Parameter")) &&
        (float_types[0] = PyObject_GetAttrString(torch, "float32")) &&
        (float_types[1] = PyObject_GetAttrString(torch, "float64")) &&
        (new_empty = PyUnicode_InternFromString("new_empty")) && (is_neg = PyUnicode_InternFromString("is_neg")) &&
        (capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__")))
        exchange = (const Exchange*)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_XDECREF(torch), Py_XDECREF(nn), Py_XDECREF(capsule);
    return exchange && exchange->major == 1 && exchange->view;
}

Index product(const Index* shape, Index ndim) {
    Index total = 1;
    for (Index axis = 0; axis < ndim; axis++) total *= shape[axis];
    return total;
}

// What PyTorch shows of a tensor that is no subclass and no wrapper; or false. This is most of what a check costs.
bool show(PyObject* object, View& x) {
    if ((PyObject*)Py_TYPE(object) != tensor_type && (PyObject*)Py_TYPE(object) != parameter_type) return false;
    return !exchange->view(object, &x) || (PyErr_Clear(), false);
}

// Where entries are and what they are.
struct Kind {
    int device, device_index, kind, bits;
    bool operator==(const Kind& k) const {
        return device == k.device && device_index == k.device_index && kind == k.kind && bits == k.bits;
    }
};
Kind kind_of(const View& x) { return {x.device, x.device_index, x.kind, x.bits}; }
bool native(const Kind& k) { return k.device == CPU && k.kind == FLOAT && (k.bits == 64 || k.bits == 32); }

// Whether a tensor is no promise of zeros and not the negative of what is stored, but contiguous entries of this kind and
// shape. None is null and may be read where it is allowed.
bool readable(PyObject* object, bool optional, Kind kind, Index ndim, const Index* shape, void** data,
              const View* seen = nullptr) {
    *data = nullptr;
    if (object == Py_None) return optional;
    View x;
    if (seen) x = *seen;
    if ((!seen && !show(object, x)) || !(kind_of(x) == kind) || x.ndim != ndim) return false;
    const Index size = product(x.shape, ndim);
    Index stride = 1;
    for (Index axis = ndim - 1; axis >= 0; stride *= shape[axis--])
        if (x.shape[axis] != shape[axis] || (size && shape[axis] != 1 && x.strides && x.strides[axis] != stride)) return false;
    if (size && !x.data) return false;
    PyObject* negated = PyObject_CallMethodObjArgs(object, is_neg, nullptr);
    Py_XDECREF(negated);
    *data = (char*)x.data + x.offset;
    return negated == Py_False;
}

// The shape of a point as the program takes it, of all channels, and how many channels it has; or false.
bool shaped(const Program& f, PyObject* object, View& x, Index* shape, Index* given) {
    if (!show(object, x)) return false;
    const Index axes = f.conv ? f.weight_axes - 2 : 0, event = f.conv ? 1 + axes : f.weight_axes - 1;
    const Index channel = x.ndim - 1 - axes;
    if (x.ndim < event || x.ndim > 16 || (event > 1 && x.ndim > event + 1)) return false;
    for (Index axis = 0; axis < x.ndim; axis++) shape[axis] = x.shape[axis];
    for (Index axis = 0; axis < axes; axis++)
        if (shape[channel + 1 + axis] != f.space[3 - axes + axis]) return false;
    if (!f.conv && event == 2 && shape[channel - 1] != f.times) return false;
    *given = shape[channel];
    shape[channel] = f.channels;
    return *given <= f.channels;
}

struct WeightShape {
    Index sizes[6];
    explicit WeightShape(const Program& f) : sizes{f.lags, f.channels, f.channels} {
        for (Index axis = 2; f.conv && axis < f.weight_axes; axis++) sizes[1 + axis] = f.kernel[3 - f.weight_axes + axis];
        if (f.conv || f.weight_axes == 2) memmove(sizes, sizes + 1, 5 * sizeof(Index));
    }
};

// Weight or None, bias, y0, z0, point, value and inside, as a program takes them: where they are, or that one does not fit.
struct Given {
    PyObject* like;  // y0 or else z0
    Kind kind;
    Index ndim, batch, inputs, shape[16];
    void* data[7];
    bool fits;
    Given(const Program& f, PyObject* const* a) : like(a[2] == Py_None ? a[3] : a[2]) {
        View x;
        fits = shaped(f, like, x, shape, &inputs);
        if (!fits) return;
        kind = kind_of(x), ndim = x.ndim, batch = product(shape, ndim) / (f.area ? f.channels * f.area : 1);
        const Kind flags = {kind.device, kind.device_index, BOOL, 8};
        fits = readable(a[0], true, kind, f.weight_axes, WeightShape(f).sizes, data) &&
               readable(a[1], true, kind, 1, &f.channels, data + 1) && readable(a[2], true, kind, ndim, x.shape, data + 2, &x);
        for (int i = 3; fits && i < 7; i++) fits = readable(a[i], true, i < 6 ? kind : flags, ndim, shape, data + i);
    }
};

// A new tensor of this shape, of the same kind as another, and where it is.
PyObject* empty(PyObject* like, int bits, Index ndim, const Index* shape, void** data) {
    PyObject *sizes = PyTuple_New(ndim), *strides = PyTuple_New(ndim), *result = nullptr;
    for (Index axis = ndim - 1, stride = 1; sizes && strides && axis >= 0; stride *= shape[axis] ? shape[axis] : 1, axis--) {
        PyTuple_SetItem(sizes, axis, PyLong_FromLongLong(shape[axis]));
        PyTuple_SetItem(strides, axis, PyLong_FromLongLong(stride));
    }
    PyObject *filled = empty_strided ? PyObject_CallNoArgs(deterministic) : nullptr, *dtype = float_types[bits == 64];
    if (empty_strided && !filled) PyErr_Clear();
    if (sizes && strides)
        result = filled == Py_False ? PyObject_CallFunctionObjArgs(empty_strided, sizes, strides, dtype, nullptr)
                                    : PyObject_CallMethodObjArgs(like, new_empty, sizes, nullptr);
    Py_XDECREF(sizes), Py_XDECREF(strides), Py_XDECREF(filled);
    View x;
    if (!result || exchange->view(result, &x)) return Py_XDECREF(result), nullptr;
    *data = (char*)x.data + x.offset;
    return result;
}

PyObject* nothing() { return PyErr_Occurred() ? nullptr : Py_NewRef(Py_None); }

// ---- Python --------------------------------------------------------------------------------------------------------

// Does the work without Python's lock, unless it is over sooner than the lock is given away and taken back.
template <class Work> bool without_python(double operations, Work work) {
    bool full = false;
    PyThreadState* state = operations > 10000 ? PyEval_SaveThread() : nullptr;
    try {
        work();
    } catch (const std::bad_alloc&) {
        full = true;
    }
    if (state) PyEval_RestoreThread(state);
    if (full) PyErr_NoMemory();
    return !full;
}

// (program, threads, what σ is, codes, weight, bias, y0, z0, point, value, inside, source) to (y, z) or, with a source, to
// (y, z, Q), where a dual's z is the v of Q = v source*; or to None where a tensor is not as the program needs it. Only y0
// may have fewer channels.
PyObject* call_sweep(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (count != 12) return PyErr_Format(PyExc_TypeError, "12 arguments needed, got %zd", count);
    const char* bytes = PyBytes_AsString(a[0]);
    const Index threads = PyLong_AsLongLong(a[1]), sigma = PyLong_AsLongLong(a[2]);
    const char* codes = a[3] == Py_None ? nullptr : PyBytes_AsString(a[3]);
    if (PyErr_Occurred()) return nullptr;
    const Program f(bytes);
    const Given g(f, a + 4);
    const int bits = g.kind.bits;
    const bool wanted = a[11] != Py_None;
    void *source, *y, *z, *Q = nullptr;
    if (!g.fits || a[4] == Py_None || (a[8] == Py_None && sigma >= SLOPE) || !native(g.kind) ||
        !readable(a[11], true, g.kind, g.ndim, g.shape, &source))
        return nothing();
    const auto [W, bias, y0, z0, point, value, inside] = g.data;
    PyObject* first = empty(g.like, bits, g.ndim, g.shape, &y);
    PyObject* second = first ? empty(g.like, bits, g.ndim, g.shape, &z) : nullptr;
    PyObject* third = second && wanted ? empty(g.like, bits, f.weight_axes, WeightShape(f).sizes, &Q) : nullptr;
    const auto run = [&](auto zero) {
        using T = decltype(zero);
        sweep<T>(f, (const T*)W,
                 {(T*)y, (T*)z, (T*)y0, (T*)z0, (T*)bias, g.inputs, Sigma(sigma), (const unsigned char*)codes, (T*)point,
                  (T*)value, (bool*)inside},
                 g.batch, threads);
        if (wanted) {
            Program of_W(bytes);
            of_W.transposed = 0;
            cotangent<T>(of_W, (const T*)z, (const T*)source, (T*)Q, g.batch, threads);
        }
    };
    PyObject* done = nullptr;
    const auto work = [&] { bits == 64 ? run(double()) : run(float()); };
    if (second && (third || !wanted) && without_python(double(f.work) * g.batch + product(g.shape, g.ndim), work))
        done = third ? PyTuple_Pack(3, first, second, third) : PyTuple_Pack(2, first, second);
    Py_XDECREF(first), Py_XDECREF(second), Py_XDECREF(third);
    return done;
}

// (program, threads, weight or None, v, z) to Q, or to None as above.
PyObject* call_cotangent(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (count != 5) return PyErr_Format(PyExc_TypeError, "5 arguments needed, got %zd", count);
    const char* bytes = PyBytes_AsString(a[0]);
    const Index threads = PyLong_AsLongLong(a[1]);
    if (PyErr_Occurred()) return nullptr;
    const Program f(bytes);
    const WeightShape weight_shape(f);
    View x;
    Index shape[16], given;
    if (!shaped(f, a[3], x, shape, &given) || given != f.channels) return nothing();
    const Index batch = product(shape, x.ndim) / (f.area ? f.channels * f.area : 1);
    const int bits = x.bits;
    const Kind floats = kind_of(x);
    void *W, *v, *z, *Q;
    if (!native(floats) || !readable(a[2], true, floats, f.weight_axes, weight_shape.sizes, &W) ||
        !readable(a[3], false, floats, x.ndim, shape, &v, &x) || !readable(a[4], false, floats, x.ndim, shape, &z))
        return nothing();
    PyObject* result = empty(a[3], bits, f.weight_axes, weight_shape.sizes, &Q);
    if (!result) return nullptr;
    const auto run = [&](auto zero) {
        using T = decltype(zero);
        cotangent<T>(f, (const T*)v, (const T*)z, (T*)Q, batch, threads);
    };
    const auto work = [&] { bits == 64 ? run(double()) : run(float()); };
    if (without_python(double(f.work) * batch, work)) return result;
    Py_DECREF(result);
    return nullptr;
}

// (program, weight or None, bias, y0, z0, point, value, inside) to (samples, channels of y0 or else z0, whether an address
// is no multiple of 16, the addresses, 0 for None), for kernels of other devices; or to None as above.
PyObject* call_addresses(PyObject*, PyObject* const* a, Py_ssize_t count) {
    if (count != 8) return PyErr_Format(PyExc_TypeError, "8 arguments needed, got %zd", count);
    const char* bytes = PyBytes_AsString(a[0]);
    if (!bytes) return nullptr;
    const Program f(bytes);
    const Given g(f, a + 1);
    if (!g.fits) return nothing();
    uintptr_t all = 0;
    for (void* p : g.data) all |= uintptr_t(p);
    PyObject* facts = PyTuple_New(10);
    if (!facts) return nullptr;
    PyTuple_SetItem(facts, 0, PyLong_FromLongLong(g.batch));
    PyTuple_SetItem(facts, 1, PyLong_FromLongLong(g.inputs));
    PyTuple_SetItem(facts, 2, PyBool_FromLong(all % 16));
    for (int i = 0; i < 7; i++) PyTuple_SetItem(facts, 3 + i, PyLong_FromVoidPtr(g.data[i]));
    return PyErr_Occurred() ? (Py_DECREF(facts), nullptr) : facts;
}

PyMethodDef methods[] = {
    {"addresses", (PyCFunction)(void (*)())call_addresses, METH_FASTCALL, nullptr},
    {"sweep", (PyCFunction)(void (*)())call_sweep, METH_FASTCALL, nullptr},
    {"cotangent", (PyCFunction)(void (*)())call_cotangent, METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

#define JOIN(a, b) a##b
#define INIT(name) JOIN(PyInit_, name)

PyMODINIT_FUNC INIT(MODULE)() {
#if defined(__AVX512F__)
    const bool able = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#elif defined(__AVX2__)
    const bool able = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
#else
    const bool able = true;
#endif
    if (!able) return PyErr_Format(PyExc_ImportError, "this processor lacks the instructions the module was built for");
    if (!connect()) return PyErr_Format(PyExc_ImportError, "this PyTorch does not show its tensors through DLPack 1");
    return PyModule_Create(&module);
}
