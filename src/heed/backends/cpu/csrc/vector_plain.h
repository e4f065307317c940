// The operations that have instructions of their own, in plain C++.

#pragma once

namespace heed {

static inline Bits widened_bits(Halves x) { return __builtin_convertvector(x, Bits); }
static inline Halves narrowed(Bits x) { return __builtin_convertvector(x, Halves); }  // the lower halves

// To the nearest integers, ties to even.
static inline Ints rounded_to_ints(Floats x) {
    Ints y;
    for (int i = 0; i < LANES; i++) y[i] = int32_t(std::lrint(x[i]));
    return y;
}

// x, as it was computed: what follows is not combined with it into another order of operations, which the compiler
// could choose differently for a row alone and for the same row among others.
static inline Floats as_computed(Floats x) {
    asm("" : "+m"(x));
    return x;
}

static inline Floats square_root(Floats x) {
    for (int i = 0; i < LANES; i++) x[i] = std::sqrt(x[i]);
    return x;
}

// To the nearest whole number, ties to even.
static inline Floats rounded(Floats x) {
    Floats y;
    for (int i = 0; i < LANES; i++) y[i] = std::nearbyint(x[i]);
    return y;
}

// x · 2^power of a whole power <= 0, for x near 1; 0, or nearly, where that is below 2^-126.
static inline Floats times_power_of_two(Floats x, Floats power) {
    power = power < -126.0f ? Floats{} - 126.0f : power;
    return x * bit_cast<Floats>(as_bits(truncated(power) + 127) << 23);
}

static inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }  // if one is NaN: b

// A Mask chooses lanes: those below n >= 0, or those from n on, n < 32.
typedef Ints Mask;
static inline Ints lane_numbers() {
    Ints y;
    for (int i = 0; i < LANES; i++) y[i] = i;
    return y;
}
static inline Mask lanes_below(int64_t n) { return lane_numbers() < clamped(n); }
static inline Mask lanes_from(int64_t n) { return lane_numbers() >= clamped(n); }
static inline Mask both(Mask a, Mask b) { return a & b; }
static inline Floats select(Mask which, Floats x, Floats otherwise) { return which ? x : otherwise; }
static inline uint32_t lanes_above(Floats x, float bar) {  // bit i: lane i
    uint32_t above = 0;
    for (int i = 0; i < LANES; i++) above |= uint32_t(x[i] > bar) << i;
    return above;
}

// load_first reads n >= 0 numbers, or a whole vector where n is larger, and fills up with zeros; store_first writes as
// many.
static inline Floats load_first(const float* x, int64_t n) {
    Floats y = {};
    memcpy(&y, x, size_t(clamped(n)) * sizeof(float));
    return y;
}
static inline Floats load_first(const bf16* x, int64_t n) {
    Halves y = {};
    memcpy(&y, x, size_t(clamped(n)) * sizeof(bf16));
    return bit_cast<Floats>(widened_bits(y) << 16);
}
static inline void store_first(Floats x, float* to, int64_t n) { memcpy(to, &x, size_t(clamped(n)) * sizeof(float)); }
static inline void store_first(Floats x, bf16* to, int64_t n) {
    for (int i = 0; i < clamped(n); i++) put(x[i], to[i]);
}
// Of numbers in 8 bits: from 0 to 255, or with a sign where BYTE_PRODUCTS are SIGNED.
static inline void store_first_bytes(Ints x, uint8_t* to, int64_t n) {
    for (int i = 0; i < clamped(n); i++) to[i] = uint8_t(x[i]);
}

}  // namespace heed
