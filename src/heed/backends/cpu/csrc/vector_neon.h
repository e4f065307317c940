// The instructions of 64-bit Arm processors for the operations of vector_plain.h: 4 lanes.

#pragma once

namespace heed {

static inline Bits widened_bits(Halves x) { return bit_cast<Bits>(vmovl_u16(bit_cast<uint16x4_t>(x))); }
static inline Halves narrowed(Bits x) { return bit_cast<Halves>(vmovn_u32(bit_cast<uint32x4_t>(x))); }
static inline Ints rounded_to_ints(Floats x) { return bit_cast<Ints>(vcvtnq_s32_f32(bit_cast<float32x4_t>(x))); }
static inline Floats as_computed(Floats x) {
    asm("" : "+w"(x));
    return x;
}
static inline Floats square_root(Floats x) { return bit_cast<Floats>(vsqrtq_f32(bit_cast<float32x4_t>(x))); }
static inline Floats rounded(Floats x) { return bit_cast<Floats>(vrndnq_f32(bit_cast<float32x4_t>(x))); }

typedef Ints Mask;
static inline Ints lane_numbers() { return Ints{0, 1, 2, 3}; }
static inline Mask lanes_below(int64_t n) { return lane_numbers() < clamped(n); }
static inline Mask lanes_from(int64_t n) { return lane_numbers() >= clamped(n); }
static inline Mask both(Mask a, Mask b) { return a & b; }
static inline Floats select(Mask which, Floats x, Floats otherwise) {
    return bit_cast<Floats>(
        vbslq_f32(bit_cast<uint32x4_t>(which), bit_cast<float32x4_t>(x), bit_cast<float32x4_t>(otherwise)));
}
static inline Floats larger(Floats a, Floats b) { return select(a > b, a, b); }  // its maximum of NaN is always NaN
static inline uint32_t lanes_above(Floats x, float bar) {
    const uint32x4_t above = vcgtq_f32(bit_cast<float32x4_t>(x), vdupq_n_f32(bar));
    return vaddvq_u32(vandq_u32(above, uint32x4_t{1, 2, 4, 8}));
}
static inline Floats times_power_of_two(Floats x, Floats power) {
    power = larger(Floats{} - 126.0f, power);
    return x * bit_cast<Floats>(as_bits(truncated(power) + 127) << 23);
}

static inline Floats load_first(const float* x, int64_t n) {
    if (n >= LANES) return load(x);
    Floats y = {};
    memcpy(&y, x, size_t(n) * sizeof(float));
    return y;
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
        memcpy(to, &x, size_t(n) * sizeof(float));
}
static inline void store_first(Floats x, bf16* to, int64_t n) {
    const Halves rounded = narrowed(rounded_bits(bit_cast<Bits>(x)));
    if (n >= LANES)
        store(rounded, to);
    else
        memcpy(to, &rounded, size_t(n) * sizeof(bf16));
}
static inline void store_first_bytes(Ints x, uint8_t* to, int64_t n) {
    const uint16x4_t shorts = bit_cast<uint16x4_t>(narrowed(as_bits(x)));
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(shorts, shorts));
    memcpy(to, &bytes, n >= LANES ? size_t(LANES) : size_t(n));
}

}  // namespace heed
