// Vectors of 16 numbers and the operations that the kernels are made of: everything that depends on the compiler or the
// processor. The vectors are GCC's and Clang's vector types, which both split where registers are shorter.
//
// Every operation exists in plain C++. Where a processor has an instruction that the compiler would not choose, there
// is a second version that uses it. The HAS_... constants tell the kernels which operations are fast. If HEED_EMULATE
// is defined, the plain versions are used throughout and all HAS_... constants but HAS_SHUFFLES are true, so every
// kernel can be tested on every processor.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    !defined(HEED_EMULATE)
# define HEED_AVX512 1
# include <immintrin.h>
# if defined(__AVX512BF16__)
#  define HEED_AVX512_BF16 1
# endif
# if defined(__AVX512VNNI__)
#  define HEED_AVX512_VNNI 1
# endif
# if (defined(__AMX_BF16__) || defined(__AMXBF16__)) && defined(__AVX512BF16__) && \
     (defined(__AMX_INT8__) || defined(__AMXINT8__)) && defined(__linux__)  // Clang 14: AMXBF16, AMXINT8
#  define HEED_AMX 1
#  include <sys/syscall.h>
#  include <unistd.h>
# endif
#endif

#pragma GCC diagnostic ignored "-Wpsabi"  // how vectors are passed to functions: no vector leaves the library

namespace heed {

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Bits __attribute__((vector_size(64)));
typedef uint16_t Shorts __attribute__((vector_size(64)));
typedef uint64_t Longs __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));  // the bits of 16 bf16 numbers
constexpr int64_t LANES = 16;                              // numbers in a vector

#if defined(HEED_AVX512)
constexpr bool HAS_SHUFFLES = true;  // of any lanes of two vectors in one instruction
#else
constexpr bool HAS_SHUFFLES = false;
#endif
#if defined(HEED_AVX512_BF16) || defined(HEED_EMULATE)
constexpr bool HAS_BF16_DOT = true;  // add_pair_products
#else
constexpr bool HAS_BF16_DOT = false;
#endif
#if defined(HEED_AVX512_VNNI) || defined(HEED_EMULATE)
constexpr bool HAS_INT8_DOT = true;  // add_byte_products
#else
constexpr bool HAS_INT8_DOT = false;
#endif
#if defined(HEED_AMX) || defined(HEED_EMULATE)
constexpr bool HAS_TILES = true;  // the functions on tiles
#else
constexpr bool HAS_TILES = false;
#endif

static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline int64_t whole_vectors(int64_t n) { return round_up(n, LANES); }

template <class To, class From>
[[gnu::always_inline]] static inline To bit_cast(const From& x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    memcpy(&y, &x, sizeof(To));
    return y;
}

// ---------------------------------------------------------------------------------------------------------------------
// bfloat16: the upper half of a float.

struct bf16 {
    uint16_t bits;
};

template <class B>  // of one number or of a vector: the nearest bf16 number's bits, ties to even
[[gnu::always_inline]] static inline B rounded_bits(B bits) {
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

static inline float to_float(float x) { return x; }
static inline float to_float(bf16 x) { return bit_cast<float>(uint32_t(x.bits) << 16); }
static inline void put(float x, float& to) { to = x; }
static inline void put(float x, bf16& to) { to.bits = uint16_t(rounded_bits(bit_cast<uint32_t>(x))); }

// ---------------------------------------------------------------------------------------------------------------------
// Conversions of one number or of a vector.

static inline int32_t truncated(float x) { return int32_t(x); }
static inline Ints truncated(Floats x) { return __builtin_convertvector(x, Ints); }
static inline float as_float(int32_t x) { return float(x); }
static inline Floats as_float(Ints x) { return __builtin_convertvector(x, Floats); }
static inline uint32_t as_bits(int32_t x) { return uint32_t(x); }
static inline Bits as_bits(Ints x) { return bit_cast<Bits>(x); }
static inline Bits widened_bits(Halves x) {
#if defined(HEED_AVX512)
    return bit_cast<Bits>(_mm512_maskz_cvtepu16_epi32(0xffff, bit_cast<__m256i>(x)));  // GCC 12 takes two steps
#else
    return __builtin_convertvector(x, Bits);
#endif
}
static inline Floats widened(Halves x) { return bit_cast<Floats>(widened_bits(x) << 16); }

// To the nearest integers, ties to even.
static inline Ints rounded_to_ints(Floats x) {
#if defined(HEED_AVX512)
    return bit_cast<Ints>(_mm512_maskz_cvtps_epi32(0xffff, x));  // GCC 12 warns of the plain one's own code
#else
    Ints y;
    for (int i = 0; i < LANES; i++) y[i] = int32_t(std::lrint(x[i]));
    return y;
#endif
}

// x, as it was computed: what follows is not combined with it into another order of operations, which the compiler
// could choose differently for a row alone and for the same row among others.
static inline Floats as_computed(Floats x) {
#if defined(HEED_AVX512)
    asm("" : "+v"(x));
#else
    asm("" : "+m"(x));
#endif
    return x;
}

static inline Floats square_root(Floats x) {
#if defined(HEED_AVX512)
    return _mm512_maskz_sqrt_ps(0xffff, x);
#else
    for (int i = 0; i < LANES; i++) x[i] = std::sqrt(x[i]);
    return x;
#endif
}

// To the nearest whole number, ties to even.
static inline Floats rounded(Floats x) {
#if defined(HEED_AVX512)
    return _mm512_maskz_roundscale_ps(0xffff, x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    Floats y;
    for (int i = 0; i < LANES; i++) y[i] = std::nearbyint(x[i]);
    return y;
#endif
}

// x · 2^power of a whole power <= 0, for x near 1; 0, or nearly, where that is below 2^-126.
static inline Floats times_power_of_two(Floats x, Floats power) {
#if defined(HEED_AVX512)
    return _mm512_maskz_scalef_ps(0xffff, x, power);
#else
    power = power < -126.0f ? Floats{} - 126.0f : power;
    return x * bit_cast<Floats>(as_bits(truncated(power) + 127) << 23);
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory, which need not be aligned. load_first reads n >= 0 numbers, or a whole vector where n is larger, and fills up
// with zeros; store_first writes as many.

template <class V, class T>
[[gnu::always_inline]] static inline V load_as(const T* x) {
    V v;
    memcpy(&v, x, sizeof(V));
    return v;
}
template <class V, class T>
[[gnu::always_inline]] static inline void store(V x, T* to) {
    memcpy(to, &x, sizeof(V));
}
static inline Floats load(const float* x) { return load_as<Floats>(x); }

// The pair of bf16 numbers at x in every lane.
static inline Bits broadcast_pair(const void* x) { return Bits{} + load_as<uint32_t>(static_cast<const char*>(x)); }

#if defined(HEED_AVX512)
typedef __mmask16 Mask;  // chooses lanes: those below n >= 0, and those from n on, n < 32
static inline Mask lanes_below(int64_t n) { return n >= LANES ? Mask(0xffff) : Mask((1u << n) - 1); }
static inline Mask lanes_from(int64_t n) { return Mask(0xffffu << n); }
static inline Mask both(Mask a, Mask b) { return Mask(a & b); }
static inline Floats select(Mask which, Floats x, Floats otherwise) {
    return _mm512_mask_blend_ps(which, otherwise, x);
}
static inline uint32_t lanes_above(Floats x, float bar) {
    return _mm512_cmp_ps_mask(x, _mm512_set1_ps(bar), _CMP_GT_OQ);
}

static inline __mmask32 short_lanes_below(int64_t n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1; }
static inline Floats load_first(const float* x, int64_t n) { return _mm512_maskz_loadu_ps(lanes_below(n), x); }
static inline Floats load_first(const bf16* x, int64_t n) {
    return widened(bit_cast<Halves>(_mm256_maskz_loadu_epi16(lanes_below(n), x)));
}
static inline Shorts load_first_shorts(const bf16* x, int64_t n) {
    return bit_cast<Shorts>(_mm512_maskz_loadu_epi16(short_lanes_below(n), x));
}
static inline void store_first(Floats x, float* to, int64_t n) { _mm512_mask_storeu_ps(to, lanes_below(n), x); }
static inline void store_first(Floats x, bf16* to, int64_t n) {
    const __m512i rounded = bit_cast<__m512i>(rounded_bits(bit_cast<Bits>(x)));
    _mm256_mask_storeu_epi16(to, lanes_below(n), _mm512_maskz_cvtepi32_epi16(0xffff, rounded));
}
static inline void store_first(Shorts x, bf16* to, int64_t n) {
    _mm512_mask_storeu_epi16(to, short_lanes_below(n), bit_cast<__m512i>(x));
}
static inline void store_first_bytes(Ints x, uint8_t* to, int64_t n) {
    _mm512_mask_cvtepi32_storeu_epi8(to, lanes_below(n), bit_cast<__m512i>(x));
}
#else
typedef Ints Mask;
static inline Ints lane_numbers() { return Ints{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
static inline int32_t clamped(int64_t n) { return n > LANES ? int32_t(LANES) : int32_t(n); }
static inline Mask lanes_below(int64_t n) { return lane_numbers() < clamped(n); }
static inline Mask lanes_from(int64_t n) { return lane_numbers() >= clamped(n); }
static inline Mask both(Mask a, Mask b) { return a & b; }
static inline Floats select(Mask which, Floats x, Floats otherwise) { return which ? x : otherwise; }
static inline uint32_t lanes_above(Floats x, float bar) {
    uint32_t above = 0;
    for (int i = 0; i < LANES; i++) above |= uint32_t(x[i] > bar) << i;
    return above;
}

static inline Floats load_first(const float* x, int64_t n) {
    Floats y = {};
    memcpy(&y, x, size_t(clamped(n)) * sizeof(float));
    return y;
}
static inline Floats load_first(const bf16* x, int64_t n) {
    Halves y = {};
    memcpy(&y, x, size_t(clamped(n)) * sizeof(bf16));
    return widened(y);
}
static inline Shorts load_first_shorts(const bf16* x, int64_t n) {
    Shorts y = {};
    memcpy(&y, x, size_t(n > 2 * LANES ? 2 * LANES : n) * sizeof(bf16));
    return y;
}
static inline void store_first(Floats x, float* to, int64_t n) { memcpy(to, &x, size_t(clamped(n)) * sizeof(float)); }
static inline void store_first(Floats x, bf16* to, int64_t n) {
    for (int i = 0; i < clamped(n); i++) put(x[i], to[i]);
}
static inline void store_first(Shorts x, bf16* to, int64_t n) {
    memcpy(to, &x, size_t(n > 2 * LANES ? 2 * LANES : n) * sizeof(bf16));
}
static inline void store_first_bytes(Ints x, uint8_t* to, int64_t n) {
    for (int i = 0; i < clamped(n); i++) to[i] = uint8_t(x[i]);
}
#endif
static inline void store_all(Floats x, float* to) { store(x, to); }
static inline void store_all(Floats x, bf16* to) { store_first(x, to, LANES); }

static inline Floats larger(Floats a, Floats b) {  // if one is NaN: b
#if defined(HEED_AVX512)
    return _mm512_maskz_max_ps(0xffff, a, b);  // GCC 12 compares and blends in some places
#else
    return a > b ? a : b;
#endif
}
static inline Ints larger(Ints a, Ints b) { return a > b ? a : b; }

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

// ---------------------------------------------------------------------------------------------------------------------
// Shuffles. Lane i of the result is lane pick(i) of a, or lane pick(i) - n of b, n being the number of lanes.

#if !defined(__clang__)
template <size_t LANE_BYTES>
struct Lane;
template <>
struct Lane<2> {
    typedef int16_t Numbers __attribute__((vector_size(64)));
};
template <>
struct Lane<4> {
    typedef int32_t Numbers __attribute__((vector_size(64)));
};
template <>
struct Lane<8> {
    typedef int64_t Numbers __attribute__((vector_size(64)));
};
#endif

template <class V, class Pick, size_t... I>
[[gnu::always_inline]] static inline V shuffle(V a, V b, Pick pick, std::index_sequence<I...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, pick(int(I))...);
#else
    return __builtin_shuffle(a, b, typename Lane<sizeof(V) / sizeof...(I)>::Numbers{pick(int(I))...});
#endif
}
template <class V, class Pick>
[[gnu::always_inline]] static inline V shuffle(V a, V b, Pick pick) {
    return shuffle(a, b, pick, std::make_index_sequence<sizeof(V) / sizeof(V{}[0])>());
}

// In each quarter (16 bytes) the first half of a's lanes and of b's in turn, or the second half.
template <class V>
[[gnu::always_inline]] static inline V interleave_low(V a, V b) {
    constexpr int N = sizeof(V) / sizeof(V{}[0]), QUARTER = N / 4;
    return shuffle(a, b, [](int i) { return i / QUARTER * QUARTER + i % QUARTER / 2 + i % 2 * N; });
}
template <class V>
[[gnu::always_inline]] static inline V interleave_high(V a, V b) {
    constexpr int N = sizeof(V) / sizeof(V{}[0]), QUARTER = N / 4;
    return shuffle(a, b, [](int i) { return i / QUARTER * QUARTER + QUARTER / 2 + i % QUARTER / 2 + i % 2 * N; });
}

// Two quarters of a, then two of b.
template <int A0, int A1, int B0, int B1>
[[gnu::always_inline]] static inline Bits shuffle_quarters(Bits a, Bits b) {
    return shuffle(a, b, [](int i) {
        constexpr int QUARTERS[] = {A0, A1, 4 + B0, 4 + B1};
        return QUARTERS[i / 4] * 4 + i % 4;
    });
}

// The vector's 16 numbers folded upon each other by `join`.
template <class V, class Join>
[[gnu::always_inline]] static inline auto folded(V x, Join join) {
    x = join(x, shuffle(x, x, [](int i) { return i ^ 8; }));
    x = join(x, shuffle(x, x, [](int i) { return i ^ 4; }));
    x = join(x, shuffle(x, x, [](int i) { return i ^ 2; }));
    x = join(x, shuffle(x, x, [](int i) { return i ^ 1; }));
    return x[0];
}

// ---------------------------------------------------------------------------------------------------------------------
// Products of pairs of bf16 numbers (AVX-512 BF16). A lane of Bits holds two: the first one in its lower half.

// sum + a's first · b's first + a's second · b's second, in float.
[[gnu::always_inline]] static inline Floats add_pair_products(Floats sum, Bits a, Bits b) {
#if defined(HEED_AVX512_BF16)
    return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(a), bit_cast<__m512bh>(b));
#else
    const auto first = [](Bits x) { return bit_cast<Floats>(x << 16); };
    const auto second = [](Bits x) { return bit_cast<Floats>(x & 0xffff0000); };
    return sum + first(a) * first(b) + second(a) * second(b);
#endif
}

// 16 numbers rounded to bf16, or 32: a's, then b's.
static inline Halves rounded_to_bf16(Floats x) {
#if defined(HEED_AVX512_BF16)
    return bit_cast<Halves>(_mm512_cvtneps_pbh(x));
#else
    return __builtin_convertvector(rounded_bits(bit_cast<Bits>(x)), Halves);
#endif
}
static inline Shorts rounded_to_bf16(Floats a, Floats b) {
#if defined(HEED_AVX512_BF16)
    return bit_cast<Shorts>(_mm512_cvtne2ps_pbh(b, a));
#else
    const Halves halves[] = {rounded_to_bf16(a), rounded_to_bf16(b)};
    return load_as<Shorts>(halves);
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Products of 8-bit integers (AVX-512 VNNI).

// sum += the four products in each lane of x's bytes, unsigned, and w's, signed.
[[gnu::always_inline]] static inline void add_byte_products(Ints& sum, Bits x, Bits w) {
#if defined(HEED_AVX512_VNNI)
    // Written out, since GCC copies the sums of the intrinsic from register to register until none is left.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
#else
    for (int shift = 0; shift < 32; shift += 8)
        sum += bit_cast<Ints>((x >> shift) & 0xff) * (bit_cast<Ints>(w << (24 - shift)) >> 24);
#endif
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiles of 16 rows of 64 bytes: registers of each thread, numbered 0 to 7 (AMX). stride: bytes from row to row.

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

}  // namespace heed
