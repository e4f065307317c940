// AVX-512's instructions for the operations of vector_plain.h: 16 lanes.

#pragma once

namespace heed {

static inline Bits widened_bits(Halves x) {
    return bit_cast<Bits>(_mm512_maskz_cvtepu16_epi32(0xffff, bit_cast<__m256i>(x)));  // GCC 12 takes two steps
}
static inline Halves narrowed(Bits x) {
    return bit_cast<Halves>(_mm512_maskz_cvtepi32_epi16(0xffff, bit_cast<__m512i>(x)));
}
static inline Ints rounded_to_ints(Floats x) {
    return bit_cast<Ints>(_mm512_maskz_cvtps_epi32(0xffff, x));  // GCC 12 warns of the plain one's own code
}
static inline Floats as_computed(Floats x) {
    asm("" : "+v"(x));
    return x;
}
static inline Floats square_root(Floats x) { return _mm512_maskz_sqrt_ps(0xffff, x); }
static inline Floats rounded(Floats x) {
    return _mm512_maskz_roundscale_ps(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline Floats times_power_of_two(Floats x, Floats power) { return _mm512_maskz_scalef_ps(0xffff, x, power); }
static inline Floats larger(Floats a, Floats b) {
    return _mm512_maskz_max_ps(0xffff, a, b);  // GCC 12 compares and blends in some places
}

typedef __mmask16 Mask;
static inline Ints lane_numbers() { return Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
static inline Mask lanes_below(int64_t n) { return n >= LANES ? Mask(0xffff) : Mask((1u << n) - 1); }
static inline Mask lanes_from(int64_t n) { return Mask(0xffffu << n); }
static inline Mask both(Mask a, Mask b) { return Mask(a & b); }
static inline Floats select(Mask which, Floats x, Floats otherwise) {
    return _mm512_mask_blend_ps(which, otherwise, x);
}
static inline uint32_t lanes_above(Floats x, float bar) {
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(bar), _CMP_GT_OQ);
}

static inline Floats load_first(const float* x, int64_t n) { return _mm512_maskz_loadu_ps(lanes_below(n), x); }
static inline Floats load_first(const bf16* x, int64_t n) {
    return bit_cast<Floats>(widened_bits(bit_cast<Halves>(_mm256_maskz_loadu_epi16(lanes_below(n), x))) << 16);
}
static inline void store_first(Floats x, float* to, int64_t n) { _mm512_mask_storeu_ps(to, lanes_below(n), x); }
static inline void store_first(Floats x, bf16* to, int64_t n) {
    const Halves rounded = narrowed(rounded_bits(bit_cast<Bits>(x)));
    _mm256_mask_storeu_epi16(to, lanes_below(n), bit_cast<__m256i>(rounded));
}
static inline void store_first_bytes(Ints x, uint8_t* to, int64_t n) {
    _mm512_mask_cvtepi32_storeu_epi8(to, lanes_below(n), bit_cast<__m512i>(x));
}

}  // namespace heed
