// Products with packed weights in 8-bit integers: each row of x in steps of its largest number / 127, W in steps for
// each output. Instructions that multiply unsigned by signed integers need x without a sign: 128 is added, and `offsets`
// takes off what that adds to the sums. Sums are integers, so they are exact.

#pragma once

#include "products.h"

namespace heed {

static inline int64_t in_fours(int64_t d_in) { return round_up(d_in, 4); }

struct Int8Panel {
    const int8_t *weights, *next;  // next: the panel that will probably be read after this one, or null
    const int32_t* offsets;
    const float *steps, *bias;
    int64_t d_in, width;
    bool relu;
};

// A row of a matrix in float.
struct Int8Row {
    const int8_t* numbers;
    float step;

    Int8Row(const Weight& weight, int64_t row)
        : numbers(static_cast<const int8_t*>(weight.panels) + row / PANEL * PANEL * in_fours(weight.d_in) +
                  row % PANEL * 4),
          step(weight.steps[row]) {}
    float operator[](int64_t j) const { return float(numbers[j / 4 * PANEL * 4 + j % 4]) * step; }
};

// The largest weight, as an integer, with which sums are exact: two products of bytes without sign are at most 32,767
// together, 2 · 255 · 64 of rows that 128 was added to and 2 · 127 · 127 of rows without negative numbers.
constexpr int32_t LARGEST_INT8_WEIGHT = BYTE_PRODUCTS == ByteProducts::PAIRS ? 64 : 127;
constexpr bool shifts_rows() { return BYTE_PRODUCTS != ByteProducts::SIGNED; }

static inline Int8Panel int8_panel_of(const Weight& weight, int64_t p, int64_t next, bool relu) {
    const int64_t d_in = in_fours(weight.d_in), first = p * PANEL;
    const int8_t* const weights = static_cast<const int8_t*>(weight.panels);
    return {weights + first * d_in,
            next < n_panels(weight) ? weights + next * PANEL * d_in : nullptr,
            weight.offsets && shifts_rows() ? weight.offsets + first : nullptr,
            weight.steps + first,
            weight.bias + first,
            d_in,
            std::min(PANEL, weight.d_out - first),
            relu};
}

[[gnu::always_inline]] static inline Floats int8_result(Ints sum, float row_step, Floats steps, Floats bias,
                                                        bool relu) {
    const Floats y = as_float(sum) * as_computed(row_step * steps) + bias;
    return relu ? larger(Floats{}, y) : y;  // in this order NaN stays NaN
}

template <class U>
[[gnu::always_inline]] static inline void finish_int8_sums(Ints sum, float step, const Int8Panel& w, int64_t from,
                                                           U* to) {
    const Floats y = int8_result(sum, step, load(w.steps + from), load(w.bias + from), w.relu);
    store_first(y, to + from, std::max(int64_t(0), w.width - from));
}

// sum += four steps: 16 bytes of each row.
template <int VECS, size_t... I, size_t... ROW>
[[gnu::always_inline]] static inline void add_four_byte_steps(std::index_sequence<I...>, std::index_sequence<ROW...>,
                                                              Ints* sum, const uint8_t* x, int64_t d_in,
                                                              const int8_t* weights) {
    const Bits bytes[] = {load_as<Bits>(x + int64_t(ROW) * d_in)...};
    const auto w = [weights](int64_t step, size_t i) {
        return load_as<Bits>(weights + step * 4 * PANEL + i % VECS * VECTOR_BYTES);
    };
    (add_lane_byte_products<0>(sum[I], bytes[I / VECS], w(0, I)), ...);
    (add_lane_byte_products<1>(sum[I], bytes[I / VECS], w(1, I)), ...);
    (add_lane_byte_products<2>(sum[I], bytes[I / VECS], w(2, I)), ...);
    (add_lane_byte_products<3>(sum[I], bytes[I / VECS], w(3, I)), ...);
}

// sum: a block of rows by VECS vectors of outputs, beginning with the offsets at `offsets`, or with 0 if it is null.
// x: d_in bytes a row; weights: PANEL outputs a step. The sums are those of block_product, but integers.
template <int VECS, size_t... I>
HEED_BLOCK void int8_block(std::index_sequence<I...>, const uint8_t* x, const int8_t* weights, const int32_t* offsets,
                           Ints* sums, int64_t d_in) {
    Ints sum[] = {(offsets ? load_as<Ints>(offsets + I % VECS * LANES) : Ints{})...};
    int64_t l = 0;
    if constexpr (HAS_LANE_PRODUCTS)
        for (; l + 16 <= d_in; l += 16, weights += 16 * PANEL)
            add_four_byte_steps<VECS>(std::index_sequence<I...>(), std::make_index_sequence<sizeof...(I) / VECS>(), sum,
                                      x + l, d_in, weights);
    x += l;
    const int64_t row[] = {as_given(int64_t(I / VECS) * d_in)...};
#pragma GCC unroll(HAS_LANE_PRODUCTS ? 1 : 2)
    for (int64_t steps = (d_in - l) / 4; steps > 0; steps--, x += 4, weights += 4 * PANEL)
        (add_byte_products(sum[I], Bits{} + load_as<uint32_t>(x + row[I]),
                           load_as<Bits>(weights + I % VECS * VECTOR_BYTES)),
         ...);
    ((sums[I] = sum[I]), ...);
}

// As many blocks of rows as there are from row i on, by VECS vectors of outputs from the j-th on.
template <int VECS, class U, size_t... I>
static inline int64_t int8_rows(std::index_sequence<I...> block, int64_t i, const uint8_t* q, const float* steps,
                                const Int8Panel& w, int64_t j, U* y, int64_t n, int64_t y_ld) {
    constexpr int64_t ROWS = sizeof...(I) / VECS, WIDTH = VECS * LANES;
    for (; i + ROWS <= n; i += ROWS) {
        fetch_share(w.next, w.d_in * PANEL, j / WIDTH * n + i, ROWS, PANEL / WIDTH * n);
        Ints sum[sizeof...(I)];
        int8_block<VECS>(block, q + i * w.d_in, w.weights + 4 * j, w.offsets ? w.offsets + j : nullptr, sum, w.d_in);
        (finish_int8_sums(sum[I], steps[i + int64_t(I / VECS)], w, j + int64_t(I % VECS) * LANES,
                          y + (i + int64_t(I / VECS)) * y_ld),
         ...);
    }
    return i;
}

// As for int8_rows: rows of a block by two vectors.
constexpr int INT8_ROWS = LANES == 16 ? 12 : BYTE_PRODUCTS == ByteProducts::PAIRS ? 5 : LANES == 8 ? 6 : 8;

// Rows by one panel.
template <class U>
struct Int8Block {
    static constexpr bool INT8 = true;
    Int8Panel w;
    const uint8_t* x;
    const float* steps;
    U* y;
    int64_t y_ld;

    Int8Block from(int64_t r) const { return {w, x + r * w.d_in, steps + r, y + r * y_ld, y_ld}; }

    // n rows from r on, whose sums come from tiles: the results are those of int8_rows.
    [[gnu::always_inline]] void finish(int64_t r, int64_t n, const int32_t* sums) const {
        finish_tile_rows(w.width, n, sums, y + r * y_ld, y_ld, [this, r](auto columns) {
            constexpr int64_t J = decltype(columns)::value;
            const Ints offsets = w.offsets ? load_as<Ints>(w.offsets + J) : Ints{};
            const Floats scales = load(w.steps + J), bias = load(w.bias + J);
            return [=, relu = w.relu, step = steps + r](int64_t i, const int32_t* of) {
                return int8_result(load_as<Ints>(of + J) + offsets, step[i], scales, bias, relu);
            };
        });
    }

    // Rows i to n, without tiles.
    void multiply(int64_t i, int64_t n) const {
        constexpr int MORE = LANES == 16 ? 2 : 4;
        int64_t rest = i;
        for (int64_t j = 0; j < PANEL; j += 2 * LANES) {
            rest = int8_rows<2>(std::make_index_sequence<2 * INT8_ROWS>(), i, x, steps, w, j, y, n, y_ld);
            rest = int8_rows<2>(std::make_index_sequence<2 * 4>(), rest, x, steps, w, j, y, n, y_ld);
        }
        for (int64_t j = 0; j < PANEL; j += MORE * LANES) {
            i = rest;
            if constexpr (LANES < 16)
                i = int8_rows<MORE>(std::make_index_sequence<MORE * 2>(), i, x, steps, w, j, y, n, y_ld);
            int8_rows<MORE>(std::make_index_sequence<MORE>(), i, x, steps, w, j, y, n, y_ld);
        }
    }
};

// q: ld integers, the first d_in of them x's, plus `shift`; step: what they count.
template <class T>
static inline void quantize_row(const T* x, uint8_t* q, float* step, int64_t d_in, int64_t ld, int32_t shift) {
    // The largest number by its bits, among which those of NaN and infinity come last: then the step is one of them,
    // and so is all that is computed from the row.
    Ints largest_bits = {};
    for (int64_t j = 0; j < d_in; j += LANES)
        largest_bits = larger(largest_bits, bit_cast<Ints>(load_first(x + j, d_in - j)) & 0x7fffffff);
    const float most = bit_cast<float>(folded(largest_bits, [](Ints a, Ints b) { return larger(a, b); }));
    const float inverse = most > 0 ? 127.0f / most : 0.0f;
    for (int64_t j = 0; j < d_in; j += LANES)
        store_first_bytes(rounded_to_ints(load_first(x + j, d_in - j) * inverse) + shift, q + j, ld - j);
    *step = most / 127.0f;
}

// Rows in 8-bit integers, in memory of the caller's.
struct QuantizedRows {
    uint8_t* numbers;
    float* steps;

    template <class T>
    void take(int64_t i, const T* row, int64_t d_in, bool by_null_offsets = false) const {
        const int32_t shift = by_null_offsets || !shifts_rows() ? 0 : 128;
        quantize_row(row, numbers + i * in_fours(d_in), steps + i, d_in, in_fours(d_in), shift);
    }

    template <class U, class Next>
    void panel_products(int64_t i, int64_t n, const Weight& weight, int64_t first, int64_t end, Next next, bool relu,
                        U* y, int64_t y_ld) const {
        const uint8_t* const x = numbers + i * in_fours(weight.d_in);
        multiply_panels<Int8Block<U>>(in_fours(weight.d_in), n, first, end, [&](int64_t p) {
            return Int8Block<U>{int8_panel_of(weight, p, next(p), relu), x, steps + i, y + (p - first) * PANEL, y_ld};
        });
    }
};

struct QuantizedMemory {
    static constexpr int64_t ROWS_AT_A_TIME = rows_at_a_time(INT8_ROWS);
    Aligned<uint8_t> numbers;
    Aligned<float> steps;
    int64_t widest;

    QuantizedMemory(int64_t n, int64_t d_in)
        : numbers(aligned<uint8_t>((n + MORE_TILE_ROWS) * in_fours(d_in))),
          steps(aligned<float>(n)),
          widest(in_fours(d_in)) {}
    QuantizedRows rows(int64_t first = 0) const { return {numbers.get() + first * widest, steps.get() + first}; }
};
static_assert(HoldsRows<QuantizedMemory>::value);

}  // namespace heed
