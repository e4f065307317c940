// Vectors of numbers, as long as the processor's registers, and the operations that the kernels are made of: everything
// that depends on the compiler or the processor. The vectors are GCC's and Clang's vector types. One that is longer than
// a register would be kept in memory by GCC, so LANES, the numbers in a vector, is 16 with AVX-512, 8 with AVX2 and 4
// elsewhere; what sums do in a lane depends on it, and so do the last bits of results.
//
// Every operation exists in plain C++ (vector_plain.h), and where the compiler would not choose the instruction that a
// processor has for it, once more with that (vector_avx512.h, vector_avx2.h, vector_neon.h). The HAS_... constants tell
// the kernels which operations are fast. HEED_EMULATE, defined as 16, 8 or 4, asks for the plain versions in vectors of
// so many lanes, with everything that processors with such registers have, so every kernel can be tested on every
// processor: tiles and pairs of bf16 with 16 lanes, byte products by pairs with 8, signed ones with 4.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#if defined(HEED_EMULATE)
# define HEED_LANES HEED_EMULATE
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
# define HEED_AVX512 1
# define HEED_LANES 16
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
#elif defined(__AVX2__) && defined(__FMA__)
# define HEED_AVX2 1
# define HEED_LANES 8
# include <immintrin.h>
#elif defined(__aarch64__)
# define HEED_NEON 1
# define HEED_LANES 4
# include <arm_neon.h>
#else
# define HEED_LANES 4
#endif

#pragma GCC diagnostic ignored "-Wpsabi"  // how vectors are passed to functions: no vector leaves the library

namespace heed {

constexpr int64_t LANES = HEED_LANES;  // numbers in a vector
static_assert(LANES == 16 || LANES == 8 || LANES == 4);
constexpr size_t VECTOR_BYTES = 4 * LANES;

typedef float Floats __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t Bits __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t Shorts __attribute__((vector_size(VECTOR_BYTES)));
typedef uint64_t Longs __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(VECTOR_BYTES / 2)));  // the bits of as many bf16 numbers

#if defined(HEED_AVX512_BF16) || (defined(HEED_EMULATE) && HEED_LANES == 16)
constexpr bool HAS_BF16_DOT = true;  // add_pair_products
#else
constexpr bool HAS_BF16_DOT = false;
#endif
#if defined(HEED_AMX) || (defined(HEED_EMULATE) && HEED_LANES == 16)
# define HEED_TILES 1
constexpr bool HAS_TILES = true;  // the functions on tiles
#else
constexpr bool HAS_TILES = false;
#endif

// How products of 8-bit integers are computed, if the processor has instructions for them (add_byte_products).
enum class ByteProducts {
    NONE,
    UNSIGNED,  // inputs without sign by weights with sign, four products to a sum of 32 bits
    PAIRS,     // the same, but two products are first added in 16 bits: weights must be small for that
    SIGNED     // both with sign, four products to a sum of 32 bits
};
#if defined(HEED_AVX512_VNNI) || (defined(HEED_AVX2) && defined(__AVXVNNI__))
constexpr ByteProducts BYTE_PRODUCTS = ByteProducts::UNSIGNED;
#elif defined(HEED_AVX512) || defined(HEED_AVX2)
constexpr ByteProducts BYTE_PRODUCTS = ByteProducts::PAIRS;
#elif defined(HEED_NEON) && defined(__ARM_FEATURE_DOTPROD)
constexpr ByteProducts BYTE_PRODUCTS = ByteProducts::SIGNED;
#elif defined(HEED_EMULATE)
constexpr ByteProducts BYTE_PRODUCTS = LANES == 16  ? ByteProducts::UNSIGNED
                                       : LANES == 8 ? ByteProducts::PAIRS
                                                    : ByteProducts::SIGNED;
#else
constexpr ByteProducts BYTE_PRODUCTS = ByteProducts::NONE;
#endif
constexpr bool HAS_INT8 = BYTE_PRODUCTS != ByteProducts::NONE;

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
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

// ---------------------------------------------------------------------------------------------------------------------
// Memory, which need not be aligned.

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

static inline float larger(float a, float b) { return a > b ? a : b; }  // if one is NaN: b
static inline Ints larger(Ints a, Ints b) { return a > b ? a : b; }
static inline int32_t clamped(int64_t n) { return n > LANES ? int32_t(LANES) : int32_t(n); }

}  // namespace heed

// The operations that have instructions of their own. The plain ones tell what each does.
#if defined(HEED_AVX512)
# include "vector_avx512.h"
#elif defined(HEED_AVX2)
# include "vector_avx2.h"
#elif defined(HEED_NEON)
# include "vector_neon.h"
#else
# include "vector_plain.h"
#endif

namespace heed {

static inline Floats widened(Halves x) { return bit_cast<Floats>(widened_bits(x) << 16); }
static inline void store_all(Floats x, float* to) { store(x, to); }
static inline void store_all(Floats x, bf16* to) { store_first(x, to, LANES); }

// ---------------------------------------------------------------------------------------------------------------------
// Shuffles. Lane i of the result is lane pick(i) of a, or lane pick(i) - n of b, n being the number of lanes.

#if !defined(__clang__)
template <size_t LANE_BYTES>
struct Lane;
template <>
struct Lane<2> {
    typedef int16_t Numbers __attribute__((vector_size(VECTOR_BYTES)));
};
template <>
struct Lane<4> {
    typedef int32_t Numbers __attribute__((vector_size(VECTOR_BYTES)));
};
template <>
struct Lane<8> {
    typedef int64_t Numbers __attribute__((vector_size(VECTOR_BYTES)));
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

// In each quarter of 64 bytes (16 bytes) the first half of a's lanes and of b's in turn, or the second half.
template <class V>
[[gnu::always_inline]] static inline V interleave_low(V a, V b) {
    constexpr int SIZE = sizeof(V{}[0]), N = sizeof(V) / SIZE, QUARTER = 16 / SIZE;
    return shuffle(a, b, [](int i) { return i / QUARTER * QUARTER + i % QUARTER / 2 + i % 2 * N; });
}
template <class V>
[[gnu::always_inline]] static inline V interleave_high(V a, V b) {
    constexpr int SIZE = sizeof(V{}[0]), N = sizeof(V) / SIZE, QUARTER = 16 / SIZE;
    return shuffle(a, b, [](int i) { return i / QUARTER * QUARTER + QUARTER / 2 + i % QUARTER / 2 + i % 2 * N; });
}

// The vector's numbers folded upon each other by `join`.
template <int HALF = LANES / 2, class V, class Join>
[[gnu::always_inline]] static inline auto folded(V x, Join join) {
    if constexpr (HALF == 0)
        return x[0];
    else
        return folded<HALF / 2>(join(x, shuffle(x, x, [](int i) { return i ^ HALF; })), join);
}

// ---------------------------------------------------------------------------------------------------------------------
// Products with one lane of a vector, which Arm's instructions take as it lies there: four numbers of a row are loaded at
// once, and none is spread over a vector first.

#if defined(HEED_NEON) || (defined(HEED_EMULATE) && HEED_LANES == 4)
constexpr bool HAS_LANE_PRODUCTS = true;
#else
constexpr bool HAS_LANE_PRODUCTS = false;
#endif

// A number to multiply a vector by. Clang would gather several of them in a vector for Arm, lane by lane.
static inline float as_loaded(float x) {
#if defined(HEED_NEON) && defined(__clang__)
    asm("" : "+w"(x));
#endif
    return x;
}

// How far a row lies behind the first one. Clang would make each row's address of the one before, so that loads wait for
// a chain of sums.
static inline int64_t as_given(int64_t distance) {
#if defined(__clang__)
    asm("" : "+r"(distance));
#endif
    return distance;
}

// sum += the LANE-th number of x · w.
template <int LANE>
[[gnu::always_inline]] static inline void add_lane_product(Floats& sum, Floats x, Floats w) {
#if defined(HEED_NEON)
    sum = bit_cast<Floats>(
        vfmaq_laneq_f32(bit_cast<float32x4_t>(sum), bit_cast<float32x4_t>(w), bit_cast<float32x4_t>(x), LANE));
#else
    sum += x[LANE] * w;
#endif
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

// One vector's numbers rounded to bf16, or two vectors': a's, then b's.
static inline Halves rounded_to_bf16(Floats x) {
#if defined(HEED_AVX512_BF16)
    return bit_cast<Halves>(_mm512_cvtneps_pbh(x));
#else
    return narrowed(rounded_bits(bit_cast<Bits>(x)));
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
// Products of 8-bit integers: see ByteProducts.

// sum += the four products in each lane of x's bytes and w's. Instructions are written out where GCC copies the sums of
// an intrinsic from register to register until none is left.
[[gnu::always_inline]] static inline void add_byte_products(Ints& sum, Bits x, Bits w) {
#if defined(HEED_AVX512_VNNI)
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
#elif defined(HEED_AVX512)
    const __m512i pairs = _mm512_maddubs_epi16(bit_cast<__m512i>(x), bit_cast<__m512i>(w));
    sum += bit_cast<Ints>(_mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#elif defined(HEED_AVX2) && defined(__AVXVNNI__) && defined(HEED_EVEX)  // the same instruction of AVX-512, for tests where AVX-VNNI is missing
    asm("%{evex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
#elif defined(HEED_AVX2) && defined(__AVXVNNI__)
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w));
#elif defined(HEED_AVX2)
    const __m256i pairs = _mm256_maddubs_epi16(bit_cast<__m256i>(x), bit_cast<__m256i>(w));
    sum += bit_cast<Ints>(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#elif defined(HEED_NEON) && defined(__ARM_FEATURE_DOTPROD)
    sum = bit_cast<Ints>(vdotq_s32(bit_cast<int32x4_t>(sum), bit_cast<int8x16_t>(w), bit_cast<int8x16_t>(x)));
#else
    const auto product = [&](int at) {
        const Ints of_w = bit_cast<Ints>(w << (24 - at)) >> 24;
        if constexpr (BYTE_PRODUCTS == ByteProducts::SIGNED) return of_w * (bit_cast<Ints>(x << (24 - at)) >> 24);
        return of_w * bit_cast<Ints>((x >> at) & 0xff);
    };
    const auto two = [&](int at) {  // with PAIRS as far as 16 bits go
        const Ints y = product(at) + product(at + 8);
        const Ints within = y > 32767 ? Ints{} + 32767 : y < -32768 ? Ints{} - 32768 : y;
        return BYTE_PRODUCTS == ByteProducts::PAIRS ? within : y;
    };
    sum += two(0) + two(16);
#endif
}

// The same of x's LANE-th lane and each of w's.
template <int LANE>
[[gnu::always_inline]] static inline void add_lane_byte_products(Ints& sum, Bits x, Bits w) {
#if defined(HEED_NEON) && defined(__ARM_FEATURE_DOTPROD)
    sum = bit_cast<Ints>(
        vdotq_laneq_s32(bit_cast<int32x4_t>(sum), bit_cast<int8x16_t>(w), bit_cast<int8x16_t>(x), LANE));
#else
    add_byte_products(sum, Bits{} + x[LANE], w);
#endif
}

}  // namespace heed
