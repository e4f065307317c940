// Products with packed weights in 8-bit integers: each row of x in steps of its largest number / 127, W in steps for
// each output. The instruction multiplies unsigned by signed integers, so 128 is added to x, and `offsets` takes off
// what that adds to the sums. Sums are integers, so they are exact.

#pragma once

#include "products.h"

namespace heed {

struct Int8Panel {
    const int8_t *weights, *next;  // next: the panel that will probably be read after this one, or null
    const int32_t* offsets;
    const float *steps, *bias;
    int64_t d_in, width;
    bool relu;
};

static inline int64_t in_fours(int64_t d_in) { return round_up(d_in, 4); }

static inline Int8Panel int8_panel_of(const Weight& weight, int64_t p, int64_t next, bool relu) {
    const int64_t d_in = in_fours(weight.d_in), first = p * PANEL;
    const int8_t* const weights = static_cast<const int8_t*>(weight.panels);
    return {weights + first * d_in,
            next < n_panels(weight) ? weights + next * PANEL * d_in : nullptr,
            weight.offsets + first,
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

// As many rows at a time as there are indices R, which are written out so that every sum has its own register.
template <class U, size_t... R>
static inline int64_t int8_rows(std::index_sequence<R...>, int64_t i, const uint8_t* q, const float* steps,
                                const Int8Panel& w, U* y, int64_t n, int64_t y_ld) {
    constexpr int64_t rows = sizeof...(R);
    for (; i + rows <= n; i += rows) {
        Ints a[rows], b[rows];
        ((a[R] = load_as<Ints>(w.offsets), b[R] = load_as<Ints>(w.offsets + LANES)), ...);
        fetch_share(w.next, w.d_in * PANEL, i, rows, n);
        const uint8_t* x = q + i * w.d_in;
        const int8_t* weights = w.weights;
        for (int64_t l = 0; l < w.d_in; l += 4, x += 4, weights += 4 * PANEL) {
            const Bits w0 = load_as<Bits>(weights), w1 = load_as<Bits>(weights + 64);
            const auto add = [&](Ints& sum0, Ints& sum1, const uint8_t* four) {
                const Bits numbers = Bits{} + load_as<uint32_t>(four);
                add_byte_products(sum0, numbers, w0);
                add_byte_products(sum1, numbers, w1);
            };
            (add(a[R], b[R], x + int64_t(R) * w.d_in), ...);
        }
        (finish_int8_sums(a[R], steps[i + int64_t(R)], w, 0, y + (i + int64_t(R)) * y_ld), ...);
        (finish_int8_sums(b[R], steps[i + int64_t(R)], w, LANES, y + (i + int64_t(R)) * y_ld), ...);
    }
    return i;
}

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
            const Ints offsets = load_as<Ints>(w.offsets + J);
            const Floats scales = load(w.steps + J), bias = load(w.bias + J);
            return [=, relu = w.relu, step = steps + r](int64_t i, const int32_t* of) {
                return int8_result(load_as<Ints>(of + J) + offsets, step[i], scales, bias, relu);
            };
        });
    }

    // Rows i to n, without tiles.
    void multiply(int64_t i, int64_t n) const {
        i = int8_rows(std::make_index_sequence<12>(), i, x, steps, w, y, n, y_ld);
        i = int8_rows(std::make_index_sequence<4>(), i, x, steps, w, y, n, y_ld);
        int8_rows(std::make_index_sequence<1>(), i, x, steps, w, y, n, y_ld);
    }
};

// q: ld integers, the first d_in of them x's; step: what they count.
template <class T>
static inline void quantize_row(const T* x, uint8_t* q, float* step, int64_t d_in, int64_t ld) {
    // The largest number by its bits, among which those of NaN and infinity come last: then the step is one of them,
    // and so is all that is computed from the row.
    Ints largest_bits = {};
    for (int64_t j = 0; j < d_in; j += LANES)
        largest_bits = larger(largest_bits, bit_cast<Ints>(load_first(x + j, d_in - j)) & 0x7fffffff);
    const float most = bit_cast<float>(folded(largest_bits, [](Ints a, Ints b) { return larger(a, b); }));
    const float inverse = most > 0 ? 127.0f / most : 0.0f;
    for (int64_t j = 0; j < d_in; j += LANES)
        store_first_bytes(rounded_to_ints(load_first(x + j, d_in - j) * inverse) + 128, q + j, ld - j);
    *step = most / 127.0f;
}

// Rows in 8-bit integers, in memory of the caller's.
struct QuantizedRows {
    uint8_t* numbers;
    float* steps;

    template <class T>
    void take(int64_t i, const T* row, int64_t d_in) const {
        quantize_row(row, numbers + i * in_fours(d_in), steps + i, d_in, in_fours(d_in));
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
