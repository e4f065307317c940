// Functions of a row of numbers: exponentials, maxima, softmax, mean and deviation.

#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "vector.h"

namespace heed {

// e^x, of one number or a vector, to within 5e-6 of its value (2e-6 from -20 on); e^-87 below -87. It is 2^n · 2^f with an
// integer n and |f| <= 1/2, and 2^f is taken from its Taylor series. Where the compiler keeps ln 2 in two parts, the
// error is 5e-7 at most; -fassociative-math lets it add them up.
template <class X>
[[gnu::always_inline]] static inline X exponential(X x) {
    x = larger(X{} - 87.0f, x);  // in this order NaN stays NaN
    const auto power = truncated(x * 1.44269504089f - 0.5f);  // rounds what is negative to the nearest
    const X n = as_float(power), f = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n ln 2
    X p = f * 1.3888889e-3f + 8.3333333e-3f;
    p = p * f + 4.1666667e-2f;
    p = p * f + 0.16666667f;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    return p * bit_cast<X>(as_bits(power + 127) << 23);  // for NaN any scale: p is NaN
}

// x in its first n lanes, `rest` in the others.
static inline Floats first_lanes(Floats x, int64_t n, float rest) {
    return n >= LANES ? x : select(lanes_below(n), x, Floats{} + rest);
}

static inline float total(Floats x) {
    return folded(x, [](Floats a, Floats b) { return a + b; });
}

// e^x = 2^(x · LOG2_E)
constexpr float LOG2_E = 1.44269504089f;

using TwoVectorsBits = std::conditional_t<LANES == 16, uint32_t, std::conditional_t<LANES == 8, uint16_t, uint8_t>>;

// 2^y by the polynomial of degree 5 with 2^0 = 1 whose largest relative error for |f| <= 1/2 is least (1e-7); 2^-200
// below -200.
[[gnu::always_inline]] static inline Floats power_of_two(Floats y) {
    y = larger(Floats{} - 200.0f, y);  // in this order NaN stays NaN
    const Floats whole = rounded(y), f = y - whole;
    Floats p = f * 1.3264727e-3f + 9.6715130e-3f;
    p = p * f + 5.5507336e-2f;
    p = p * f + 0.24022242f;
    p = p * f + 0.69314700f;
    return times_power_of_two(p * f + 1.0f, whole);
}

// Σ 2^(x · LOG2_E - top) of n numbers, for which that power is at most 0, or nearly, to within 3e-7 of its value.
// above: a bit for each number, up to the next multiple of 2 LANES: whether it is larger than `bar`.
static inline float sum_of_powers(const float* x, float top, int64_t n, float bar, TwoVectorsBits* above) {
    const auto power = [=](Floats of) { return power_of_two(of * LOG2_E - top); };
    Floats a = {}, b = {};  // two chains: each sum waits for the one before
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) {
        const Floats one = load(x + j), other = load(x + j + LANES);
        *above++ = TwoVectorsBits(lanes_above(one, bar) | lanes_above(other, bar) << LANES);
        a += power(one);
        b += power(other);
    }
    uint32_t last_above = 0;
    for (int shift = 0; j < n; j += LANES, shift += LANES) {
        const Floats last = load_first(x + j, n - j);
        last_above |= lanes_above(first_lanes(last, n - j, -INFINITY), bar) << shift;
        a += first_lanes(power(last), n - j, 0);
    }
    if (n % (2 * LANES)) *above = TwoVectorsBits(last_above);
    return total(a + b);
}

// Of n >= 1 numbers the largest in each of four chains of vectors, -infinity where there is none: each maximum waits for
// the one before. The compiler would take them one by one, for the sake of NaN, which the caller finds in the sum.
struct Largest {
    Floats a, b, c, d;
};
[[gnu::always_inline]] static inline Largest largest_by_chain(const float* x, int64_t n) {
    Floats a = Floats{} - INFINITY, b = a, c = a, d = a;
    int64_t j = 0;
    for (; j + 4 * LANES <= n; j += 4 * LANES) {
        a = larger(a, load(x + j));
        b = larger(b, load(x + j + LANES));
        c = larger(c, load(x + j + 2 * LANES));
        d = larger(d, load(x + j + 3 * LANES));
    }
    for (; j < n; j += LANES) a = larger(a, first_lanes(load_first(x + j, n - j), n - j, -INFINITY));
    return {a, b, c, d};
}

static inline float largest_lane(Floats x) {
    return folded(x, [](Floats a, Floats b) { return larger(a, b); });
}
[[gnu::always_inline]] static inline float largest_lane(const Largest& of) {
    return largest_lane(larger(larger(of.a, of.b), larger(of.c, of.d)));
}

static inline float largest(const float* x, int64_t n) { return largest_lane(largest_by_chain(x, n)); }

// log Σ e^x of n numbers; NaN if one is NaN or infinite.
static inline double log_sum(const float* x, int64_t n) {
    constexpr int64_t PIECE = 512;
    TwoVectorsBits above[PIECE / (2 * LANES)];
    const float top = largest(x, n), shift = top > -INFINITY ? top * LOG2_E : 0;
    double total = 0;
    for (int64_t j = 0; j < n; j += PIECE) total += sum_of_powers(x + j, shift, std::min(PIECE, n - j), INFINITY, above);
    return double(shift) / double(LOG2_E) + std::log(total);
}

// sum += softmax(x)
static inline void add_probabilities(const float* x, int64_t n, float* sum) {
    const float log_total = float(log_sum(x, n));
    for (int64_t j = 0; j < n; j += LANES) {
        const Floats p = power_of_two((load_first(x + j, n - j) - log_total) * LOG2_E);
        store_first(load_first(sum + j, n - j) + p, sum + j, n - j);
    }
}

// Turns n numbers into e^(x - top); returns their sum. Vectorized by hand: whether the compiler does it
// depends on the surrounding code.
static inline float exponentials(float* x, float top, int64_t n) {
    Floats sums = {};
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES) {
        const Floats e = exponential(load(x + j) - top);
        store(e, x + j);
        sums += e;
    }
    float sum = total(sums);
    for (; j < n; j++) sum += x[j] = exponential(x[j] - top);
    return sum;
}

// Turns the first n of ld scores, whole vectors, into softmax(scale · scores) without its division, the others into
// zeros. Returns what to multiply by instead: 1 / their sum.
static inline float softmax_numerators(float* p, int64_t n, int64_t ld, float scale) {
    Floats tops = Floats{} - INFINITY, totals = {};
    for (int64_t j = 0; j < n; j += LANES) tops = larger(tops, first_lanes(load(p + j), n - j, -INFINITY));
    const float top = largest_lane(tops);
    for (int64_t j = 0; j < ld; j += LANES) {
        const Floats e = j < n ? first_lanes(exponential((load(p + j) - top) * scale), n - j, 0) : Floats{};
        store(e, p + j);
        totals += e;
    }
    return 1.0f / total(totals);
}

static inline void softmax(float* p, int64_t n, int64_t ld, float scale) {
    const float inverse = softmax_numerators(p, n, ld, scale);
    for (int64_t j = 0; j < ld; j += LANES) store(load(p + j) * inverse, p + j);
}

// x · Φ(x), the exact GELU. 1 - Φ(|x|) is half of erfc(|x| / √2), by formula 7.1.26 of Abramowitz and Stegun, whose
// error is below 8e-8.
static inline Floats gelu(Floats x) {
    const Floats size = x < 0.0f ? -x : x;
    const Floats t = 1.0f / (size * 0.231641888f + 1.0f);  // 0.3275911 / √2
    Floats p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    const Floats tail = p * t * exponential(size * size * -0.5f) * 0.5f;
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

// x · sigmoid(x)
static inline Floats swish(Floats x) {
    const Floats e = exponential(x < 0.0f ? x : -x);  // at most 1
    return x * (x < 0.0f ? e : Floats{} + 1.0f) / (e + 1.0f);
}

template <class Function>
static inline void apply(Function function, float* x, int64_t n) {
    for (int64_t j = 0; j < n; j += LANES) store_first(function(load_first(x + j, n - j)), x + j, n - j);
}

struct Moments {
    float mean, rstd;  // rstd: 1 / standard deviation
};

[[gnu::always_inline]] static inline Moments moments(const float* x, int64_t d, float epsilon) {
    float total = 0, squares = 0;
    for (int32_t j = 0; j < d; j++) total += x[j];
    const float mean = total / d;
    for (int32_t j = 0; j < d; j++) squares += (x[j] - mean) * (x[j] - mean);
    return {mean, 1.0f / std::sqrt(squares / d + epsilon)};
}

}  // namespace heed
