// Matrix products in float. A row's result never depends on the other rows, to the last bit, nor on the number of
// threads.

#pragma once

#include <optional>

#include "kernels.h"
#include "threads.h"

namespace heed {

// c (ROWS, 16 VECS) = a · b (k, 16 VECS), a by any strides. All sums stay in registers.
template <int ROWS, int VECS>
static inline void block_product(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_ld, float* c,
                                 int64_t c_ld, int64_t k) {
    Floats sum[ROWS][VECS] = {};
    for (int64_t l = 0; l < k; l++) {
        Floats bl[VECS];
        for (int v = 0; v < VECS; v++) bl[v] = load(b + l * b_ld + v * LANES);
        for (int r = 0; r < ROWS; r++) {
            const float al = a[r * a_row + l * a_col];
            for (int v = 0; v < VECS; v++) sum[r][v] += al * bl[v];
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECS; v++) store(sum[r][v], c + r * c_ld + v * LANES);
}

// As many blocks of this height as there are from row i on; returns the row behind them.
template <int ROWS, int VECS>
static inline int64_t block_rows(int64_t i, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_ld,
                                 float* c, int64_t c_ld, int64_t m, int64_t k) {
    for (; i + ROWS <= m; i += ROWS)
        block_product<ROWS, VECS>(a + i * a_row, a_row, a_col, b, b_ld, c + i * c_ld, c_ld, k);
    return i;
}

template <int VECS>
static inline void block_columns(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_ld, float* c,
                                 int64_t c_ld, int64_t m, int64_t k) {
    int64_t i = block_rows<7, VECS>(0, a, a_row, a_col, b, b_ld, c, c_ld, m, k);
    i = block_rows<4, VECS>(i, a, a_row, a_col, b, b_ld, c, c_ld, m, k);
    i = block_rows<2, VECS>(i, a, a_row, a_col, b, b_ld, c, c_ld, m, k);
    block_rows<1, VECS>(i, a, a_row, a_col, b, b_ld, c, c_ld, m, k);
}

// c (m, n) = a (m, k) · b (k, n), a by any strides, n a multiple of 16.
[[maybe_unused]] static void product(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_ld,
                                     float* c, int64_t c_ld, int64_t m, int64_t n, int64_t k) {
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) block_columns<2>(a, a_row, a_col, b + j, b_ld, c + j, c_ld, m, k);
    if (j < n) block_columns<1>(a, a_row, a_col, b + j, b_ld, c + j, c_ld, m, k);
}

// ---------------------------------------------------------------------------------------------------------------------
// Products with packed weights.

constexpr int64_t PANEL = 2 * LANES;  // outputs

static inline int64_t n_panels(const Weight& weight) { return (weight.d_out + PANEL - 1) / PANEL; }

// run(p) for each panel p. A thread takes some consecutive ones, so that it can fetch the next one from memory in time.
template <class Run>
static void share_panels(Team& team, const Weight& weight, Run run) {
    team.share(n_panels(weight), std::max(int64_t(1), n_panels(weight) / (4 * team.size)), run);
}

template <int ROWS>
static inline int64_t panel_rows(int64_t i, const float* x, const float* panel, const float* bias, float* y, int64_t n,
                                 int64_t d_in, int64_t d_out, int64_t width, bool relu) {
    float tile[ROWS * PANEL];
    for (; i + ROWS <= n; i += ROWS) {
        block_product<ROWS, 2>(x + i * d_in, d_in, 1, panel, PANEL, tile, PANEL, d_in);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t j = 0; j < PANEL; j += LANES) {
                Floats sum = load(tile + r * PANEL + j) + load(bias + j);
                if (relu) sum = larger(Floats{}, sum);  // in this order NaN stays NaN
                store_first(sum, y + (i + r) * d_out + j, std::max(int64_t(0), width - j));
            }
    }
    return i;
}

// Panel p's columns of x (n, d_in) · Wᵀ + bias, then ReLU if asked for, for all n rows; y has rows of y_ld numbers.
static inline void one_panel_product(const float* x, const Weight& weight, int64_t p, float* y, int64_t y_ld, int64_t n,
                                     bool relu) {
    const int64_t d_in = weight.d_in, width = std::min(PANEL, weight.d_out - p * PANEL);
    const float *panel = static_cast<const float*>(weight.panels) + p * d_in * PANEL, *bias = weight.bias + p * PANEL;
    int64_t i = panel_rows<12>(0, x, panel, bias, y, n, d_in, y_ld, width, relu);
    i = panel_rows<4>(i, x, panel, bias, y, n, d_in, y_ld, width, relu);
    panel_rows<1>(i, x, panel, bias, y, n, d_in, y_ld, width, relu);
}

// y (n, d_out) = x (n, d_in) · Wᵀ + bias, then ReLU if asked for.
[[gnu::noinline, maybe_unused]] static void panel_product(const float* x, const Weight& weight, float* y, int64_t n,
                                                          bool relu, Team& team) {
    share_panels(team, weight,
                 [&](int64_t p) { one_panel_product(x, weight, p, y + p * PANEL, weight.d_out, n, relu); });
}

// A block's share of fetching the next panel: the weights are read once a step, from memory.
static inline void fetch_share(const void* next, int64_t bytes, int64_t i, int64_t rows, int64_t n) {
    const int64_t share = (bytes * rows + n - 1) / n;
    if (next)
        for (int64_t at = 0; at < share; at += 64)
            __builtin_prefetch(static_cast<const char*>(next) + i * share / rows + at, 0, 2);
}

// A thread's tiles, if the processor has them and the system allows them: one object per thread and parallel region.
struct SearchTiles {
    static bool allowed() {
        static const bool yes = HAS_TILES && tiles_allowed();
        return yes;
    }
    // Whether they take rows of this many bytes: whole rows of tiles.
    static bool take(int64_t row_bytes) { return allowed() && row_bytes % 64 == 0; }
    std::optional<Tiles> tiles;
    SearchTiles() {
        if (allowed()) tiles.emplace();
    }
};

// Rows as narrow products read them, in bf16 or 8-bit integers: `Rows` takes rows of numbers, and multiplies n of them,
// from row i on, by panel p, while it fetches panel `next` from memory; `Memory` holds them.

// y (n, d_out) = x · Wᵀ + bias, then ReLU if asked for.
template <class Rows, class U>
[[gnu::noinline]] static void rows_product(const Rows& x, const Weight& weight, U* y, int64_t n, bool relu,
                                           Team& team) {
    share_panels(team, weight,
                 [&](int64_t p) { x.panel_product(0, n, weight, p, p + 1, relu, y + p * PANEL, weight.d_out); });
}

template <class Memory, class T, class U>
static void narrow_product(const T* x, const Weight& weight, U* y, int64_t n, bool relu) {
    const Memory memory(n, weight.d_in);
    const auto rows = memory.rows();
    parallel([&](Team& team) {
        const SearchTiles tiles;
        team.split(n, [&](int64_t i) { rows.take(i, x + i * weight.d_in, weight.d_in); });
        rows_product(rows, weight, y, n, relu, team);
    });
}

template <bool INT8, int SUM, int A, int B>
[[gnu::always_inline]] static inline void add_products_of_tiles() {
    if constexpr (INT8)
        add_byte_tile_products<SUM, A, B>();
    else
        add_tile_products<SUM, A, B>();
}

// sums (16 BLOCKS, PANEL) = rows of x by one panel, in 32-bit integers if INT8, or else in float. The panel is as the
// products by vectors read it: a row of a tile holds four bytes of each of 16 outputs.
template <int BLOCKS, bool INT8>
static inline void tile_sums(const void* x, int64_t row_bytes, const void* panel, void* sums) {
    const char *const rows = static_cast<const char*>(x), *const weights = static_cast<const char*>(panel);
    char* const to = static_cast<char*>(sums);
    constexpr int64_t PANEL_BYTES = 4 * PANEL;
    zero_tile<0>();
    zero_tile<1>();
    if (BLOCKS == 2) {
        zero_tile<2>();
        zero_tile<3>();
    }
    compiler_barrier();
    for (int64_t l = 0; l < row_bytes; l += 64) {
        load_tile<6>(weights + l * PANEL, PANEL_BYTES);
        load_tile<7>(weights + l * PANEL + 64, PANEL_BYTES);
        load_tile<4>(rows + l, row_bytes);
        add_products_of_tiles<INT8, 0, 4, 6>();
        add_products_of_tiles<INT8, 1, 4, 7>();
        if (BLOCKS == 2) {
            load_tile<5>(rows + 16 * row_bytes + l, row_bytes);
            add_products_of_tiles<INT8, 2, 5, 6>();
            add_products_of_tiles<INT8, 3, 5, 7>();
        }
    }
    store_tile<0>(to, PANEL_BYTES);
    store_tile<1>(to + 64, PANEL_BYTES);
    if (BLOCKS == 2) {
        store_tile<2>(to + 16 * PANEL_BYTES, PANEL_BYTES);
        store_tile<3>(to + 16 * PANEL_BYTES + 64, PANEL_BYTES);
    }
}

}  // namespace heed
