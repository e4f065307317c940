// What all kernels share: number types, vectors, e^x, a block of a matrix product.
//
// Each kernel reads and writes T (float, or bfloat16 as its 16 bits) and computes in float. The Python side checks
// shapes, types and contiguity; nothing is checked here.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <omp.h>

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

// e^x within 2e-7 of its value, 0 below -87: 2^n · 2^f with n integer, |f| <= 1/2 and the Taylor series of 2^f.
[[gnu::always_inline]] static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    const int32_t power = int32_t(x * 1.44269504089f - 0.5f);  // rounds what is negative to the nearest
    const float n = float(power), f = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n ln 2, ln 2 in two parts
    float p = 1.3888889e-3f;
    p = p * f + 8.3333333e-3f;
    p = p * f + 4.1666667e-2f;
    p = p * f + 0.16666667f;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    const uint32_t bits = uint32_t(power + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return p * scale;
}

static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

// The largest of n numbers. The compiler would take them one by one, for the sake of NaN, which the caller finds in
// the sum.
static inline float largest(const float* x, int64_t n) {
    float top = x[0];
    int64_t j = 0;
    if (n >= W) {
        const auto at = [&](int64_t i) {
            Vec v;
            memcpy(&v, x + i, sizeof(Vec));
            return v;
        };
        Vec a = at(0), b = a, c = a, d = a;  // apart, since each waits for itself
        for (; j + 4 * W <= n; j += 4 * W) {
            a = larger(a, at(j));
            b = larger(b, at(j + W));
            c = larger(c, at(j + 2 * W));
            d = larger(d, at(j + 3 * W));
        }
        for (; j + W <= n; j += W) a = larger(a, at(j));
        a = larger(larger(a, b), larger(c, d));
        typedef int32_t Places __attribute__((vector_size(64)));
        a = larger(a, __builtin_shuffle(a, Places{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7}));
        a = larger(a, __builtin_shuffle(a, Places{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11}));
        a = larger(a, __builtin_shuffle(a, Places{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13}));
        top = a[0] > a[1] ? a[0] : a[1];
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
