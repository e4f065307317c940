// What all kernels share: number types, vectors, e^x, a block of a matrix product.
//
// Each kernel reads and writes T (float, or bfloat16 as its 16 bits) and computes in float. The Python side checks
// shapes, types, gaps and ranges (library.py: `addresses`, `check_range`); nothing is checked here.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <omp.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef float Vec __attribute__((vector_size(64)));  // 16 numbers; the compiler splits it where registers are shorter
constexpr int64_t W = 16;

struct bf16 {
    uint16_t bits;
};

static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) {
    uint32_t bits = uint32_t(x.bits) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline void put(float& to, float x) { to = x; }
static inline void put(bf16& to, float x) {  // rounds to the nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    to.bits = uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(__AVX512BF16__) && defined(__AVX512VL__)
#define HEED_HAS_BF16_PAIRS 1
// The instruction multiplies pairs of bf16 numbers and adds both products to a float.
template <class T>
static inline __m512bh pairs(const T& x) {
    static_assert(sizeof(T) == sizeof(__m512bh));
    __m512bh numbers;
    memcpy(&numbers, &x, sizeof(numbers));
    return numbers;
}
static inline __m512i loaded(const void* x) { return _mm512_loadu_si512(x); }
#endif

typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));

static inline int32_t truncated(float x) { return int32_t(x); }
static inline Ints truncated(Vec x) { return __builtin_convertvector(x, Ints); }
static inline float as_float(int32_t x) { return float(x); }
static inline Vec as_float(Ints x) { return __builtin_convertvector(x, Vec); }
static inline uint32_t as_bits(int32_t x) { return uint32_t(x); }
static inline Bits as_bits(Ints x) { return Bits(x); }

// e^x, of one number or 16, within 2e-7 of its value, 0 below -87: 2^n · 2^f with n integer, |f| <= 1/2 and the Taylor
// series of 2^f.
template <typename X>
[[gnu::always_inline]] static inline X exponential(X x) {
    x = x < -87.0f ? X{} - 87.0f : x;
    const auto power = truncated(x * 1.44269504089f - 0.5f);  // rounds what is negative to the nearest
    const X n = as_float(power), f = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n ln 2, ln 2 in two parts
    X p = f * 1.3888889e-3f + 8.3333333e-3f;
    p = p * f + 4.1666667e-2f;
    p = p * f + 0.16666667f;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    const auto bits = as_bits(power + 127) << 23;  // of NaN any: p is NaN
    X scale;
    memcpy(&scale, &bits, sizeof(X));
    return p * scale;
}

static inline Vec load(const float* x) {
    Vec v;
    memcpy(&v, x, sizeof(Vec));
    return v;
}

static inline void store(Vec x, float* to) { memcpy(to, &x, sizeof(Vec)); }

// The vector's 16 numbers folded upon each other by `join`.
template <typename Join>
[[gnu::always_inline]] static inline float folded(Vec x, Join join) {
    x = join(x, __builtin_shuffle(x, Ints{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
    x = join(x, __builtin_shuffle(x, Ints{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
    x = join(x, __builtin_shuffle(x, Ints{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
    x = join(x, __builtin_shuffle(x, Ints{1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14}));
    return x[0];
}

// x in its first n places, `rest` in the others.
static inline Vec first_places(Vec x, int64_t n, float rest) {
    const Ints place = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return n >= W ? x : place < int32_t(n) ? x : Vec{} + rest;
}

static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// The largest of n numbers. The compiler would take them one by one, for the sake of NaN, which the caller finds in
// the sum.
static inline float largest(const float* x, int64_t n) {
    float top = x[0];
    int64_t j = 0;
    if (n >= W) {
        Vec a = load(x), b = a, c = a, d = a;  // apart, since each waits for itself
        for (; j + 4 * W <= n; j += 4 * W) {
            a = larger(a, load(x + j));
            b = larger(b, load(x + j + W));
            c = larger(c, load(x + j + 2 * W));
            d = larger(d, load(x + j + 3 * W));
        }
        for (; j + W <= n; j += W) a = larger(a, load(x + j));
        a = larger(larger(a, b), larger(c, d));
        top = folded(a, larger);
    }
    for (; j < n; j++) top = x[j] > top ? x[j] : top;
    return top;
}

static inline int64_t whole_vectors(int64_t n) { return (n + W - 1) / W * W; }

// C (m × n) = A (m × k) · B (k × n), A by any strides, n a multiple of 16. Blocks of up to 7 × 32 stay in registers.
template <int ROWS, int VECS>
static inline void block(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb, float* c,
                         int64_t ldc, int64_t k) {
    Vec sum[ROWS][VECS] = {};
    for (int64_t l = 0; l < k; l++) {
        Vec bl[VECS];
        for (int v = 0; v < VECS; v++) memcpy(&bl[v], b + l * ldb + v * W, sizeof(Vec));
        for (int r = 0; r < ROWS; r++) {
            const float al = a[r * a_row + l * a_col];
            for (int v = 0; v < VECS; v++) sum[r][v] += al * bl[v];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECS; v++) memcpy(c + r * ldc + v * W, &sum[r][v], sizeof(Vec));
}

template <int ROWS, int VECS>
static inline int64_t rows(int64_t i, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb,
                           float* c, int64_t ldc, int64_t m, int64_t k) {
    for (; i + ROWS <= m; i += ROWS) block<ROWS, VECS>(a + i * a_row, a_row, a_col, b, ldb, c + i * ldc, ldc, k);
    return i;
}

struct Moments {
    float mean, rstd;  // 1 / deviation
};

[[gnu::always_inline]] static inline Moments moments(const float* x, int64_t d, float epsilon) {
    float total = 0, squares = 0;
    for (int32_t j = 0; j < d; j++) total += x[j];
    const float mean = total / d;
    for (int32_t j = 0; j < d; j++) squares += (x[j] - mean) * (x[j] - mean);
    return {mean, 1.0f / std::sqrt(squares / d + epsilon)};
}

struct Scratch {  // grows; one a thread
    std::unique_ptr<float[]> memory;
    int64_t size = 0;
    float* take(int64_t n) {
        if (n > size) memory.reset(new float[size = n]);
        return memory.get();
    }
};
