// Tiles of 16 rows of 64 bytes: registers of each thread, numbered 0 to 7 (AMX), or memory that emulates them. And what
// only products on tiles do with vectors, which have 16 lanes wherever there are tiles.

#pragma once

#include "vector.h"

namespace heed {

constexpr int64_t TILE_NUMBERS = 512;  // in bf16: 16 rows of 32

#if defined(HEED_AMX)
// Whether the system lets this process use them. See Documentation/arch/x86/xstate.rst in Linux.
static inline bool tiles_allowed() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
struct Tiles {  // a thread's tiles can be used as long as this lives
    Tiles() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int i = 0; i < 8; i++) shape.row_bytes[i] = 64, shape.rows[i] = 16;
        asm volatile("ldtilecfg %0" : : "m"(shape));  // GCC's own function tells the compiler of its first bytes alone
    }
    ~Tiles() { asm volatile("tilerelease"); }
};
template <int TILE>
[[gnu::always_inline]] static inline void zero_tile() {
    asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
// The compiler does not learn that memory is read: see compiler_barrier.
template <int TILE>
[[gnu::always_inline]] static inline void load_tile(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE));
}
template <int TILE>
[[gnu::always_inline]] static inline void store_tile(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}
// SUM[m, n] += Σ a[m, 2k] · b[k, 2n] + a[m, 2k + 1] · b[k, 2n + 1]: sums in float, a and b in bf16.
template <int SUM, int A, int B>
[[gnu::always_inline]] static inline void add_tile_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}
// SUM[m, n] += Σ a[m, 4k + i] · b[k, 4n + i] for i from 0 to 3: sums in 32 bits, a in bytes without sign, b with sign.
template <int SUM, int A, int B>
[[gnu::always_inline]] static inline void add_byte_tile_products() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(A), "i"(B));
}
#else
static inline bool tiles_allowed() { return HAS_TILES; }
struct Tiles {
    Tiles() {}  // not trivial, so that the variable counts as used
};
struct Tile {
    Bits rows[16];
};
template <int TILE>
static Tile& tile() {
    thread_local Tile it;
    return it;
}
template <int TILE>
static inline void zero_tile() {
    tile<TILE>() = {};
}
template <int TILE>
static inline void load_tile(const void* from, int64_t stride) {
    for (int64_t i = 0; i < 16; i++) tile<TILE>().rows[i] = load_as<Bits>(static_cast<const char*>(from) + i * stride);
}
template <int TILE>
static inline void store_tile(void* to, int64_t stride) {
    for (int64_t i = 0; i < 16; i++) store(tile<TILE>().rows[i], static_cast<char*>(to) + i * stride);
}
template <int SUM, int A, int B>
static inline void add_tile_products() {
    for (int m = 0; m < 16; m++) {
        Floats sum = bit_cast<Floats>(tile<SUM>().rows[m]);
        for (int k = 0; k < 16; k++) sum = add_pair_products(sum, Bits{} + tile<A>().rows[m][k], tile<B>().rows[k]);
        tile<SUM>().rows[m] = bit_cast<Bits>(sum);
    }
}
template <int SUM, int A, int B>
static inline void add_byte_tile_products() {
    for (int m = 0; m < 16; m++) {
        Ints sum = bit_cast<Ints>(tile<SUM>().rows[m]);
        for (int k = 0; k < 16; k++) add_byte_products(sum, Bits{} + tile<A>().rows[m][k], tile<B>().rows[k]);
        tile<SUM>().rows[m] = bit_cast<Bits>(sum);
    }
}
#endif

// What was written before is in memory when tiles are loaded behind this.
static inline void compiler_barrier() { asm volatile("" : : : "memory"); }

// ---------------------------------------------------------------------------------------------------------------------
// Operations on vectors of 16 lanes.

// The first n of 32 numbers in bf16, zeros for the rest; and stores as many.
#if defined(HEED_AVX512)
static inline __mmask32 short_lanes_below(int64_t n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1; }
static inline Shorts load_first_shorts(const bf16* x, int64_t n) {
    return bit_cast<Shorts>(_mm512_maskz_loadu_epi16(short_lanes_below(n), x));
}
static inline void store_first(Shorts x, bf16* to, int64_t n) {
    _mm512_mask_storeu_epi16(to, short_lanes_below(n), bit_cast<__m512i>(x));
}
#else
static inline Shorts load_first_shorts(const bf16* x, int64_t n) {
    Shorts y = {};
    memcpy(&y, x, size_t(n > 2 * LANES ? 2 * LANES : n) * sizeof(bf16));
    return y;
}
static inline void store_first(Shorts x, bf16* to, int64_t n) {
    memcpy(to, &x, size_t(n > 2 * LANES ? 2 * LANES : n) * sizeof(bf16));
}
#endif

// Of four times 16 bytes, one vector.
static inline Bits gather_quarters(const void* a, const void* b, const void* c, const void* d) {
#if defined(HEED_AVX512)
    const auto at = [](const void* x) { return _mm_loadu_si128(static_cast<const __m128i*>(x)); };
    __m512i y = _mm512_castsi128_si512(at(a));
    y = _mm512_inserti32x4(y, at(b), 1);
    y = _mm512_inserti32x4(y, at(c), 2);
    return bit_cast<Bits>(_mm512_inserti32x4(y, at(d), 3));
#else
    char y[64];
    memcpy(y, a, 16);
    memcpy(y + 16, b, 16);
    memcpy(y + 32, c, 16);
    memcpy(y + 48, d, 16);
    return load_as<Bits>(y);
#endif
}

// Two quarters of a, then two of b.
template <int A0, int A1, int B0, int B1>
[[gnu::always_inline]] static inline Bits shuffle_quarters(Bits a, Bits b) {
    return shuffle(a, b, [](int i) {
        constexpr int QUARTERS[] = {A0, A1, 4 + B0, 4 + B1};
        return QUARTERS[i / 4] * 4 + i % 4;
    });
}

}  // namespace heed
