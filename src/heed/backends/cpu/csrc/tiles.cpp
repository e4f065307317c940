// Products of large bf16 matrices on AMX tiles, for training. A step has the same few shapes three times over: x Wᵀ,
// dy W and dyᵀ x; the last one, the gradient of a weight, is added to its fp32 sum at once.
//
// The second operand is first laid out as the processor wants it, in panels of 32 columns, by all threads. Then a
// thread takes 128 rows of the result, lays their first operand out tile by tile, and works block by block, 32 x 32 sums
// in four tiles; what its rows meet again soon stays in its cache. A block's sums go to memory while the tiles of the
// next one multiply: the two run side by side in the processor. Each sum has one order, whatever the threads do.

#include "common.h"

#if defined(__AMX_BF16__) && defined(HEED_HAS_BF16_PAIRS)

#include <cstdlib>
#include <mutex>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int64_t SIDE = 32;     // rows and columns of a block of the result: 2 x 2 tiles of 16 x 16 sums
constexpr int64_t TILE = 512;    // numbers in a tile of an operand: 16 rows of 32
constexpr int64_t ROWS = 128;    // of the result, a thread's at a time
constexpr int64_t DEPTH = 1024;  // products that are summed before the sum is added to the result in memory
constexpr int64_t GROUP = 1 << 18;  // numbers of the panels that a thread's rows all meet before the next ones

struct Room {  // grows
    void* memory = nullptr;
    int64_t size = 0;
    bf16* take(int64_t n) {
        if (n > size) {
            free(memory);
            memory = aligned_alloc(64, (n * sizeof(bf16) + 63) / 64 * 64);
            size = n;
        }
        return static_cast<bf16*>(memory);
    }
};
Room shared_panels;  // of the one product that is made at a time
std::mutex one_at_a_time;
thread_local Room own_rows;

// Element (i, k), k being what is summed over, lies at data[i * ld + k], or if crosswise at data[k * ld + i].
struct Operand {
    const bf16* data;
    int64_t ld;
    bool crosswise;
    const bf16* at(int64_t i, int64_t k) const { return crosswise ? data + k * ld + i : data + i * ld + k; }
};

inline __mmask32 first(int64_t n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1; }

// The 4 x 4 pairs in each quarter of four vectors, transposed.
inline void transpose_quarters(const __m512i* x, __m512i* y) {
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    y[0] = _mm512_unpacklo_epi64(a, c);
    y[1] = _mm512_unpackhi_epi64(a, c);
    y[2] = _mm512_unpacklo_epi64(b, d);
    y[3] = _mm512_unpackhi_epi64(b, d);
}

// 8 numbers of each of the rows 0, 8, 16 and 24.
inline __m512i eighths(const bf16* x, int64_t ld) {
    const auto at = [&](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + row * ld)); };
    __m512i y = _mm512_castsi128_si512(at(0));
    y = _mm512_inserti32x4(y, at(8), 1);
    y = _mm512_inserti32x4(y, at(16), 2);
    return _mm512_inserti32x4(y, at(24), 3);
}

// A first operand that lies crosswise: of 32 rows (k) of 32 (i), two tiles of 16 rows (i) of 32 (k).
inline void turn_rows(const bf16* from, int64_t ld, bf16* to) {
    const __m512i upper = _mm512_set1_epi32(int(0xffff0000));
    for (int column = 0; column < 32; column += 8) {
        __m512i even[4], odd[4], turned[4];
        for (int q = 0; q < 4; q++) {
            const __m512i a = eighths(from + 2 * q * ld + column, ld), b = eighths(from + (2 * q + 1) * ld + column, ld);
            even[q] = _mm512_ternarylogic_epi32(upper, _mm512_slli_epi32(b, 16), a, 0xca);  // upper ? second : third
            odd[q] = _mm512_ternarylogic_epi32(upper, b, _mm512_srli_epi32(a, 16), 0xca);
        }
        transpose_quarters(even, turned);
        for (int i = 0; i < 4; i++) _mm512_store_si512(to + (column + 2 * i) * 32, turned[i]);
        transpose_quarters(odd, turned);
        for (int i = 0; i < 4; i++) _mm512_store_si512(to + (column + 2 * i + 1) * 32, turned[i]);
    }
}

// One that does not: the same two tiles of 16 rows (i) of 32 (k).
inline void copy_rows(const bf16* from, int64_t ld, bf16* to) {
    for (int i = 0; i < 32; i++) _mm512_store_si512(to + i * 32, _mm512_loadu_si512(from + i * ld));
}

// A copy of n_rows rows of n_columns numbers, zeros for the rest of 32 x 32.
inline void with_zeros(const bf16* from, int64_t ld, int64_t n_rows, int64_t n_columns, bf16* to) {
    for (int64_t i = 0; i < 32; i++) {
        const __m512i row = _mm512_maskz_loadu_epi16(i < n_rows ? first(n_columns) : 0, from + i * ld);
        _mm512_store_si512(to + i * 32, row);
    }
}

// A second operand that lies crosswise: of 32 rows (k) of 32 (i), two tiles of 16 pairs of rows, 16 columns each.
inline void pair_rows(const bf16* from, int64_t ld, bf16* to) {
    const __m512i left = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i right = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int64_t i = 0; i < 16; i++) {
        const __m512i a = _mm512_loadu_si512(from + 2 * i * ld), b = _mm512_loadu_si512(from + (2 * i + 1) * ld);
        const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
        _mm512_store_si512(to + i * 32, _mm512_permutex2var_epi64(low, left, high));
        _mm512_store_si512(to + TILE + i * 32, _mm512_permutex2var_epi64(low, right, high));
    }
}

// One that does not: the same two tiles of 32 rows (i) of 32 (k).
inline void pair_columns(const bf16* from, int64_t ld, bf16* to) {
    for (int half = 0; half < 2; half++, from += 16 * ld, to += TILE) {
        __m512i x[16], y[16];
        for (int i = 0; i < 16; i++) x[i] = _mm512_loadu_si512(from + i * ld);
        for (int i = 0; i < 16; i += 4) transpose_quarters(x + i, y + i);  // quarter q of y[4g + j]: pair 4q + j of rows 4g …
        for (int j = 0; j < 4; j++) {
            const __m512i a = _mm512_shuffle_i32x4(y[j], y[4 + j], 0x44), b = _mm512_shuffle_i32x4(y[8 + j], y[12 + j], 0x44);
            const __m512i c = _mm512_shuffle_i32x4(y[j], y[4 + j], 0xee), d = _mm512_shuffle_i32x4(y[8 + j], y[12 + j], 0xee);
            _mm512_store_si512(to + j * 32, _mm512_shuffle_i32x4(a, b, 0x88));
            _mm512_store_si512(to + (4 + j) * 32, _mm512_shuffle_i32x4(a, b, 0xdd));
            _mm512_store_si512(to + (8 + j) * 32, _mm512_shuffle_i32x4(c, d, 0x88));
            _mm512_store_si512(to + (12 + j) * 32, _mm512_shuffle_i32x4(c, d, 0xdd));
        }
    }
}

// Calls lay(from, ld) with a whole square of 32 x 32 numbers: the operand's own, or a copy of what is left at its edges.
template <typename Lay>
inline void square(const Operand& x, int64_t i, int64_t k, int64_t n, int64_t depth, Lay lay) {
    const bf16* from = x.at(i, k);
    if (i + 32 <= n && k + 32 <= depth) return lay(from, x.ld);
    alignas(64) bf16 copy[32 * 32];
    if (x.crosswise)
        with_zeros(from, x.ld, depth - k, n - i, copy);
    else
        with_zeros(from, x.ld, n - i, depth - k, copy);
    lay(copy, 32);
}

// A block of sums on its way to the result, row by row: fp32 sums are added, bf16 results get the bias and are written.
template <bool ADD>
struct Finish {
    const float* from;
    char* to;
    int64_t step, rows = 0;  // bytes between the result's rows; rows left
    __mmask32 columns;
    __m512 bias[2];

    void row() {
        const __m512 left = _mm512_load_ps(from), right = _mm512_load_ps(from + 16);
        if (ADD) {
            float* sums = reinterpret_cast<float*>(to);
            const __mmask16 a = __mmask16(columns), b = __mmask16(columns >> 16);
            _mm512_mask_storeu_ps(sums, a, _mm512_add_ps(left, _mm512_maskz_loadu_ps(a, sums)));
            _mm512_mask_storeu_ps(sums + 16, b, _mm512_add_ps(right, _mm512_maskz_loadu_ps(b, sums + 16)));
        } else {
            const auto both = _mm512_cvtne2ps_pbh(_mm512_add_ps(right, bias[1]), _mm512_add_ps(left, bias[0]));
            _mm512_mask_storeu_epi16(to, columns, reinterpret_cast<const __m512i&>(both));
        }
        from += SIDE;
        to += step;
        rows--;
    }
};

inline __m512 widened(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

struct Tiles {  // a thread's, while this lives
    Tiles() {
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int i = 0; i < 8; i++) shape.row_bytes[i] = 64, shape.rows[i] = 16;
        asm volatile("ldtilecfg %0" : : "m"(shape));  // GCC's own function tells the compiler of its first bytes alone
    }
    ~Tiles() { _tile_release(); }
};

// Fetches an eighth of what the operands have two steps later, be it in the next block.
template <int EIGHTH>
[[gnu::always_inline]] inline void fetch(const bf16* a, const bf16* b) {
    for (const bf16* x : {a, b}) {
        const char* const later = reinterpret_cast<const char*>(x + 4 * TILE + EIGHTH * TILE / 4);
        _mm_prefetch(later, _MM_HINT_T0);
        _mm_prefetch(later + 64, _MM_HINT_T0);
        _mm_prefetch(later + 128, _MM_HINT_T0);
        _mm_prefetch(later + 192, _MM_HINT_T0);
    }
}

// The sums in tiles 0 to 3 take in 32 products each: two tiles at `a`, rows of the result, by two at b, columns.
// Instructions on tiles that follow each other closely hinder each other, so others stand between them.
[[gnu::always_inline]] inline void multiply_tiles(const bf16* a, const bf16* b) {
    _tile_loadd(4, a, 64);
    fetch<0>(a, b);
    _tile_loadd(6, b, 64);
    fetch<1>(a, b);
    _tile_dpbf16ps(0, 4, 6);
    fetch<2>(a, b);
    _tile_loadd(7, b + TILE, 64);
    fetch<3>(a, b);
    _tile_dpbf16ps(1, 4, 7);
    fetch<4>(a, b);
    _tile_loadd(5, a + TILE, 64);
    fetch<5>(a, b);
    _tile_dpbf16ps(2, 5, 6);
    fetch<6>(a, b);
    _tile_dpbf16ps(3, 5, 7);
    fetch<7>(a, b);
}

template <bool ADD>
void multiply(Operand a, Operand b, void* result, int64_t ld, const bf16* bias, int64_t m, int64_t n, int64_t depth) {
    const int64_t n_k = (depth + 31) / 32, n_panels = (n + 31) / 32, n_blocks = (m + 31) / 32;  // tiles and blocks
    const int64_t most_k = ADD ? std::min(DEPTH / 32, n_k) : n_k;
    bf16* const panels = shared_panels.take(n_panels * n_k * 2 * TILE);
    int64_t n_rows = ROWS / SIDE;
    while (n_rows > 1 && (n_blocks + n_rows - 1) / n_rows < 2 * omp_get_max_threads()) n_rows /= 2;
#pragma omp parallel
    {
        const Tiles tiles;
#pragma omp for schedule(static)
        for (int64_t k = 0; k < n_k; k++)
            for (int64_t p = 0; p < n_panels; p++) {
                bf16* const to = panels + (p * n_k + k) * 2 * TILE;
                square(b, p * 32, k * 32, n, depth, [&](const bf16* from, int64_t from_ld) {
                    if (b.crosswise)
                        pair_rows(from, from_ld, to);
                    else
                        pair_columns(from, from_ld, to);
                });
            }
        bf16* const rows = own_rows.take(n_rows * most_k * 2 * TILE);  // tile by tile, what a thread has of `a`
        alignas(64) float sums[SIDE * SIDE];
        Finish<ADD> finish;
#pragma omp for schedule(dynamic)
        for (int64_t m0 = 0; m0 < n_blocks; m0 += n_rows) {
            const int64_t m1 = std::min(n_blocks, m0 + n_rows);
            for (int64_t k0 = 0; k0 < n_k; k0 += most_k) {
                const int64_t k1 = std::min(n_k, k0 + most_k);
                for (int64_t i = m0; i < m1; i++)
                    for (int64_t k = k0; k < k1; k++) {
                        bf16* const to = rows + ((i - m0) * most_k + k - k0) * 2 * TILE;
                        square(a, i * 32, k * 32, m, depth, [&](const bf16* from, int64_t from_ld) {
                            if (a.crosswise)
                                turn_rows(from, from_ld, to);
                            else
                                copy_rows(from, from_ld, to);
                        });
                    }
                asm volatile("" : : : "memory");  // GCC does not know that tiles are loaded from there
                const int64_t late = k1 - k0 > 4 ? 2 : 1;  // by then the sums of the block before have reached memory
                const int64_t rows_a_time = (SIDE + k1 - k0 - late - 1) / std::max<int64_t>(1, k1 - k0 - late);
                const int64_t group = std::max<int64_t>(1, GROUP / ((k1 - k0) * 2 * TILE));
                for (int64_t p0 = 0; p0 < n_panels; p0 += group)
                    for (int64_t turn = 0, n_p = std::min(group, n_panels - p0); turn < (m1 - m0) * n_p; turn++) {
                        const int64_t i = m0 + turn / n_p, p = p0 + turn % n_p;
                        _tile_zero(0);
                        _tile_zero(1);
                        _tile_zero(2);
                        _tile_zero(3);
                        for (int64_t k = k0; k < k1; k++) {
                            const bf16* const columns = panels + (p * n_k + k) * 2 * TILE;
                            multiply_tiles(rows + ((i - m0) * most_k + k - k0) * 2 * TILE, columns);
                            if (k >= k0 + late)
                                for (int64_t r = 0; r < rows_a_time && finish.rows; r++) finish.row();
                        }
                        while (finish.rows) finish.row();
                        _tile_stored(0, sums, 128);
                        _tile_stored(1, sums + 16, 128);
                        _tile_stored(2, sums + 16 * SIDE, 128);
                        _tile_stored(3, sums + 16 * SIDE + 16, 128);
                        const int64_t size = ADD ? sizeof(float) : sizeof(bf16);
                        finish.from = sums;
                        finish.to = static_cast<char*>(result) + (i * SIDE * ld + p * SIDE) * size;
                        finish.step = ld * size;
                        finish.rows = std::min(SIDE, m - i * SIDE);
                        finish.columns = first(n - p * SIDE);
                        if (!ADD) {
                            const __m512i x = _mm512_maskz_loadu_epi16(bias ? finish.columns : 0, bias + p * SIDE);
                            finish.bias[0] = widened(_mm512_castsi512_si256(x));
                            finish.bias[1] = widened(_mm512_extracti64x4_epi64(x, 1));
                        }
                    }
            }
            while (finish.rows) finish.row();
        }
    }
}

}  // namespace

// Whether the processor multiplies tiles of bf16, and the system lets this process do so.
extern "C" int has_tiles() {
    constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;  // of arch_prctl (Linux, Documentation/arch/x86/xstate.rst)
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// C (m x n) = A B + bias, or C += A B where C is fp32 (`add`). A's rows and B's columns are operands: see there.
extern "C" void tile_product(const bf16* a, int64_t a_ld, int32_t a_crosswise, const bf16* b, int64_t b_ld,
                             int32_t b_crosswise, void* c, int64_t c_ld, int32_t add, const bf16* bias, int64_t m, int64_t n,
                             int64_t depth) {
    const std::lock_guard<std::mutex> alone(one_at_a_time);  // Python's threads may call this side by side
    const Operand left{a, a_ld, a_crosswise != 0}, right{b, b_ld, b_crosswise != 0};
    if (add)
        multiply<true>(left, right, c, c_ld, nullptr, m, n, depth);
    else
        multiply<false>(left, right, c, c_ld, bias, m, n, depth);
}

#else

extern "C" int has_tiles() { return 0; }

#endif
