// How tile products read and store bf16 matrices: squares of 32 x 32 numbers, each as two tiles.

#pragma once

#include "exports.h"
#include "tile_registers.h"

namespace heed {

// Element (i, k), k being what is summed over, is data[i * ld + k], or data[k * ld + i] if transposed.
struct Operand {
    const bf16* data;
    int64_t ld;
    bool transposed;
    const bf16* at(int64_t i, int64_t k) const { return transposed ? data + k * ld + i : data + i * ld + k; }
};

// Transposes the 4 x 4 pairs in each quarter of four vectors.
static inline void transpose_quarters(const Bits* x, Bits* y) {
    const Longs a = bit_cast<Longs>(interleave_low(x[0], x[1])), b = bit_cast<Longs>(interleave_high(x[0], x[1]));
    const Longs c = bit_cast<Longs>(interleave_low(x[2], x[3])), d = bit_cast<Longs>(interleave_high(x[2], x[3]));
    y[0] = bit_cast<Bits>(interleave_low(a, c));
    y[1] = bit_cast<Bits>(interleave_high(a, c));
    y[2] = bit_cast<Bits>(interleave_low(b, d));
    y[3] = bit_cast<Bits>(interleave_high(b, d));
}

// 8 numbers of each of the rows 0, 8, 16 and 24.
static inline Bits eighths(const bf16* x, int64_t ld) {
    return gather_quarters(x, x + 8 * ld, x + 16 * ld, x + 24 * ld);
}

// The layouts of 32 x 32 numbers as two tiles each. Of a transposed first operand, from 32 rows (k) of 32 (i): tiles of
// 16 rows (i) of 32 (k).
static inline void store_rows_transposed(const bf16* from, int64_t ld, bf16* to) {
    for (int column = 0; column < 32; column += 8) {
        Bits even[4], odd[4], transposed[4];
        for (int q = 0; q < 4; q++) {
            const Bits a = eighths(from + 2 * q * ld + column, ld), b = eighths(from + (2 * q + 1) * ld + column, ld);
            even[q] = b << 16 | (a & 0xffff);
            odd[q] = (b & 0xffff0000) | a >> 16;
        }
        transpose_quarters(even, transposed);
        for (int i = 0; i < 4; i++) store(transposed[i], to + (column + 2 * i) * 32);
        transpose_quarters(odd, transposed);
        for (int i = 0; i < 4; i++) store(transposed[i], to + (column + 2 * i + 1) * 32);
    }
}

// Of one that is not, the same.
static inline void store_rows(const bf16* from, int64_t ld, bf16* to) {
    for (int i = 0; i < 32; i++) store(load_as<Bits>(from + i * ld), to + i * 32);
}

// Of a transposed second operand, from 32 rows (k) of 32 (i): tiles of 16 pairs of rows, 16 columns each.
static inline void store_row_pairs(const bf16* from, int64_t ld, bf16* to) {
    for (int64_t i = 0; i < 16; i++) {
        const Shorts a = load_as<Shorts>(from + 2 * i * ld), b = load_as<Shorts>(from + (2 * i + 1) * ld);
        const Bits low = bit_cast<Bits>(interleave_low(a, b)), high = bit_cast<Bits>(interleave_high(a, b));
        const auto left = [](int lane) { return lane / 8 * 4 + lane % 4 + lane / 4 % 2 * int(LANES); };
        const auto right = [](int lane) { return 8 + lane / 8 * 4 + lane % 4 + lane / 4 % 2 * int(LANES); };
        store(shuffle(low, high, left), to + i * 32);
        store(shuffle(low, high, right), to + TILE_NUMBERS + i * 32);
    }
}

// Of one that is not, from 32 rows (i) of 32 (k): the same.
static inline void store_column_pairs(const bf16* from, int64_t ld, bf16* to) {
    for (int half = 0; half < 2; half++, from += 16 * ld, to += TILE_NUMBERS) {
        Bits x[16], y[16];
        for (int i = 0; i < 16; i++) x[i] = load_as<Bits>(from + i * ld);
        for (int i = 0; i < 16; i += 4)
            transpose_quarters(x + i, y + i);  // quarter q of y[4g + j]: pair 4q + j of rows 4g …
        for (int j = 0; j < 4; j++) {
            const Bits a = shuffle_quarters<0, 1, 0, 1>(y[j], y[4 + j]),
                       b = shuffle_quarters<0, 1, 0, 1>(y[8 + j], y[12 + j]);
            const Bits c = shuffle_quarters<2, 3, 2, 3>(y[j], y[4 + j]),
                       d = shuffle_quarters<2, 3, 2, 3>(y[8 + j], y[12 + j]);
            store(shuffle_quarters<0, 2, 0, 2>(a, b), to + j * 32);
            store(shuffle_quarters<1, 3, 1, 3>(a, b), to + (4 + j) * 32);
            store(shuffle_quarters<0, 2, 0, 2>(c, d), to + (8 + j) * 32);
            store(shuffle_quarters<1, 3, 1, 3>(c, d), to + (12 + j) * 32);
        }
    }
}

// A copy of n_rows rows of n_columns numbers, padded with zeros to 32 x 32.
static inline void copy_padded(const bf16* from, int64_t ld, bf16* to, int64_t n_rows, int64_t n_columns) {
    for (int64_t i = 0; i < 32; i++) store(load_first_shorts(from + i * ld, i < n_rows ? n_columns : 0), to + i * 32);
}

// Calls run(from, ld) with a whole square of 32 x 32 numbers: the operand's own, or a padded copy at its edges.
template <class Run>
static inline void with_square(const Operand& x, int64_t i, int64_t k, int64_t n, int64_t depth, Run run) {
    const bf16* from = x.at(i, k);
    if (i + 32 <= n && k + 32 <= depth) return run(from, x.ld);
    alignas(64) bf16 copy[32 * 32];
    if (x.transposed)
        copy_padded(from, x.ld, copy, depth - k, n - i);
    else
        copy_padded(from, x.ld, copy, n - i, depth - k);
    run(copy, int64_t(32));
}

// Prefetches an eighth of what the operands have two steps later, be it in the next block.
template <int EIGHTH>
[[gnu::always_inline]] static inline void prefetch(const bf16* a, const bf16* b) {
    for (const bf16* x : {a, b})
        for (int i = 0; i < TILE_NUMBERS / 4; i += 32)
            __builtin_prefetch(x + 4 * TILE_NUMBERS + EIGHTH * TILE_NUMBERS / 4 + i, 0, 3);
}

// The sums in tiles 0 to 3 get 32 more products each: two tiles at `a`, rows of the result, by two at b, columns.
// Instructions on tiles in close succession slow each other down, so others stand between them.
[[gnu::always_inline]] static inline void multiply_tiles(const bf16* a, const bf16* b) {
    load_tile<4>(a, 64);
    prefetch<0>(a, b);
    load_tile<6>(b, 64);
    prefetch<1>(a, b);
    add_tile_products<0, 4, 6>();
    prefetch<2>(a, b);
    load_tile<7>(b + TILE_NUMBERS, 64);
    prefetch<3>(a, b);
    add_tile_products<1, 4, 7>();
    prefetch<4>(a, b);
    load_tile<5>(a + TILE_NUMBERS, 64);
    prefetch<5>(a, b);
    add_tile_products<2, 5, 6>();
    prefetch<6>(a, b);
    add_tile_products<3, 5, 7>();
    prefetch<7>(a, b);
}

}  // namespace heed
