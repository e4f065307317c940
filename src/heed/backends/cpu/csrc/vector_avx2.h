// AVX2's instructions for the operations of vector_plain.h: 8 lanes.

#pragma once

namespace heed {

static inline Bits widened_bits(Halves x) { return bit_cast<Bits>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(x))); }
static inline Halves narrowed(Bits x) {
    const __m256i all = bit_cast<__m256i>(x);
    return bit_cast<Halves>(_mm_packus_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
}
static inline Ints rounded_to_ints(Floats x) { return bit_cast<Ints>(_mm256_cvtps_epi32(x)); }
static inline Floats as_computed(Floats x) {
    asm("" : "+x"(x));
    return x;
}
static inline Floats square_root(Floats x) { return _mm256_sqrt_ps(x); }
static inline Floats rounded(Floats x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
static inline Floats times_power_of_two(Floats x, Floats power) {
    power = larger(Floats{} - 126.0f, power);
    return x * bit_cast<Floats>(as_bits(truncated(power) + 127) << 23);
}

typedef Ints Mask;
static inline Ints lane_numbers() { return Ints{0, 1, 2, 3, 4, 5, 6, 7}; }
static inline Mask lanes_below(int64_t n) { return clamped(n) > lane_numbers(); }
static inline Mask lanes_from(int64_t n) { return lane_numbers() >= clamped(n); }
static inline Mask both(Mask a, Mask b) { return a & b; }
static inline Floats select(Mask which, Floats x, Floats otherwise) {
    return _mm256_blendv_ps(otherwise, x, bit_cast<__m256>(which));
}
static inline uint32_t lanes_above(Floats x, float bar) {
    return uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_set1_ps(bar), _CMP_GT_OQ)));
}

static inline Floats load_first(const float* x, int64_t n) {
    return n >= LANES ? load(x) : Floats(_mm256_maskload_ps(x, bit_cast<__m256i>(lanes_below(n))));
}
static inline Floats load_first(const bf16* x, int64_t n) {
    Halves y = {};
    if (n >= LANES)
        y = load_as<Halves>(x);
    else
        memcpy(&y, x, size_t(n) * sizeof(bf16));
    return bit_cast<Floats>(widened_bits(y) << 16);
}
static inline void store_first(Floats x, float* to, int64_t n) {
    if (n >= LANES)
        store(x, to);
    else
        _mm256_maskstore_ps(to, bit_cast<__m256i>(lanes_below(n)), x);
}
static inline void store_first(Floats x, bf16* to, int64_t n) {
    const Halves rounded = narrowed(rounded_bits(bit_cast<Bits>(x)));
    if (n >= LANES)
        store(rounded, to);
    else
        memcpy(to, &rounded, size_t(n) * sizeof(bf16));
}
static inline void store_first_bytes(Ints x, uint8_t* to, int64_t n) {
    const __m128i shorts = bit_cast<__m128i>(narrowed(as_bits(x)));
    const uint64_t bytes = uint64_t(_mm_cvtsi128_si64(_mm_packus_epi16(shorts, shorts)));
    memcpy(to, &bytes, n >= LANES ? 8 : size_t(n));
}

}  // namespace heed
