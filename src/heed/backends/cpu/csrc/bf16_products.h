// Products with packed weights in bf16: each row of x is rounded to bf16, sums are in float.

#pragma once

#include "products.h"

namespace heed {

static inline int64_t in_pairs(int64_t d_in) { return round_up(d_in, 2); }

using Bf16Panel = FloatPanel<bf16>;

template <class U>
[[gnu::always_inline]] static inline void finish_bf16_sums(Floats sum, const Bf16Panel& w, int64_t from, U* to) {
    store_first(float_result(sum, load(w.bias + from), w.relu), to + from, std::max(int64_t(0), w.width - from));
}

// As many rows at a time as there are indices R.
template <class U, size_t... R>
static inline int64_t bf16_rows(std::index_sequence<R...>, int64_t i, const bf16* numbers, const Bf16Panel& w, U* y,
                                int64_t n, int64_t y_ld) {
    constexpr int64_t rows = sizeof...(R);
    for (; i + rows <= n; i += rows) {
        // Two sums a row, one for each half of the panel; all stay in registers.
        Floats a[rows], b[rows];
        ((a[R] = Floats{}, b[R] = Floats{}), ...);
        fetch_share(w.next, w.d_in * PANEL * 2, i, rows, n);
        // Each instruction multiplies pairs: two numbers of a row by two weights of each output.
        const bf16 *x = numbers + i * w.d_in, *weights = w.weights;
        for (int64_t l = 0; l < w.d_in; l += 2, x += 2, weights += 2 * PANEL) {
            const Bits w0 = load_as<Bits>(weights), w1 = load_as<Bits>(weights + 32);
            const auto add = [&](Floats& sum0, Floats& sum1, const bf16* two) {
                const Bits pair = broadcast_pair(two);
                sum0 = add_pair_products(sum0, pair, w0);
                sum1 = add_pair_products(sum1, pair, w1);
            };
            (add(a[R], b[R], x + int64_t(R) * w.d_in), ...);
        }
        (finish_bf16_sums(a[R], w, 0, y + (i + int64_t(R)) * y_ld), ...);
        (finish_bf16_sums(b[R], w, LANES, y + (i + int64_t(R)) * y_ld), ...);
    }
    return i;
}

// Rows by one panel.
template <class U>
struct Bf16Block {
    static constexpr bool INT8 = false;
    Bf16Panel w;
    const bf16* x;
    U* y;
    int64_t y_ld;

    Bf16Block from(int64_t r) const { return {w, x + r * w.d_in, y + r * y_ld, y_ld}; }

    // n rows from r on, whose sums come from tiles.
    [[gnu::always_inline]] void finish(int64_t r, int64_t n, const int32_t* sums) const {
        finish_float_rows(w, n, sums, y + r * y_ld, y_ld);
    }

    // Rows i to n, without tiles.
    void multiply(int64_t i, int64_t n) const {
        i = bf16_rows(std::make_index_sequence<12>(), i, x, w, y, n, y_ld);
        i = bf16_rows(std::make_index_sequence<4>(), i, x, w, y, n, y_ld);
        bf16_rows(std::make_index_sequence<1>(), i, x, w, y, n, y_ld);
    }
};

// Rows rounded to bf16, in memory of the caller's.
struct Bf16Rows {
    bf16* numbers;

    template <class T>
    void take(int64_t i, const T* row, int64_t d_in, bool = false) const {
        bf16* const to = numbers + i * in_pairs(d_in);
        for (int64_t j = 0; j < d_in; j += LANES) store_first(load_first(row + j, d_in - j), to + j, d_in - j);
        if (d_in % 2) put(0.0f, to[d_in]);
    }

    template <class U, class Next>
    void panel_products(int64_t i, int64_t n, const Weight& weight, int64_t first, int64_t end, Next next, bool relu,
                        U* y, int64_t y_ld) const {
        const bf16* const x = numbers + i * in_pairs(weight.d_in);
        multiply_panels<Bf16Block<U>>(2 * in_pairs(weight.d_in), n, first, end, [&](int64_t p) {
            return Bf16Block<U>{float_panel_of<bf16>(weight, in_pairs(weight.d_in), p, next(p), relu), x,
                                y + (p - first) * PANEL, y_ld};
        });
    }
};

struct Bf16Memory {
    static constexpr int64_t ROWS_AT_A_TIME = 12;
    Aligned<bf16> numbers;
    int64_t widest;

    Bf16Memory(int64_t n, int64_t d_in)
        : numbers(aligned<bf16>((n + MORE_TILE_ROWS) * in_pairs(d_in))), widest(in_pairs(d_in)) {}
    Bf16Rows rows(int64_t first = 0) const { return {numbers.get() + first * widest}; }
};
static_assert(HoldsRows<Bf16Memory>::value);

}  // namespace heed
