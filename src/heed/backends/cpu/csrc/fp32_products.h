// Products with packed weights in float.

#pragma once

#include "products.h"

namespace heed {

using Fp32Panel = FloatPanel<float>;

// As many blocks of this height as there are from row i on, by the VECS vectors of outputs from the j-th on.
template <int ROWS, int VECS>
static inline int64_t fp32_rows(int64_t i, const float* x, const Fp32Panel& w, int64_t j, float* y, int64_t n,
                                int64_t y_ld) {
    constexpr int64_t WIDTH = VECS * LANES;
    float sums[ROWS * WIDTH];
    for (; i + ROWS <= n; i += ROWS) {
        block_product<VECS>(std::make_index_sequence<ROWS * VECS>(), x + i * w.d_in, w.d_in, 1, w.weights + j, PANEL,
                            sums, WIDTH, w.d_in);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t v = 0; v < WIDTH; v += LANES)
                store_first(float_result(load(sums + r * WIDTH + v), load(w.bias + j + v), w.relu),
                            y + (i + r) * y_ld + j + v, std::max(int64_t(0), w.width - j - v));
    }
    return i;
}

constexpr int FP32_ROWS = LANES == 16 ? 12 : LANES == 8 ? 6 : 8;  // of a block by two vectors

// n rows by one panel. Of fewer rows more vectors are taken at a time, since a sum waits for the one before.
static inline void fp32_panel_product(const float* x, const Fp32Panel& w, float* y, int64_t n, int64_t y_ld) {
    constexpr int MORE = LANES == 16 ? 2 : 4;
    int64_t rest = 0;
    for (int64_t j = 0; j < PANEL; j += 2 * LANES) {
        rest = fp32_rows<FP32_ROWS, 2>(0, x, w, j, y, n, y_ld);
        rest = fp32_rows<4, 2>(rest, x, w, j, y, n, y_ld);
    }
    for (int64_t j = 0; j < PANEL; j += MORE * LANES) {
        int64_t i = rest;
        if constexpr (LANES < 16) i = fp32_rows<2, MORE>(i, x, w, j, y, n, y_ld);
        fp32_rows<1, MORE>(i, x, w, j, y, n, y_ld);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Products in float on tiles of bf16. A float is the sum of three bf16 numbers, each the upper half of what the ones
// before it leave. Of the nine products of two such sums the six largest are computed; errors are half to twice those
// of a product in float (a test compares them). Where many rows share a panel, it takes half of the time. An infinite
// number becomes NaN.

// Whether tiles take rows of d_in floats.
static inline bool splits(int64_t d_in) { return SearchTiles::take(2 * d_in); }

constexpr int64_t PARTS = 3;
constexpr int64_t SPLIT_STEP = 32;  // numbers of a row that a tile takes

// The pairs of parts that two vectors have; first, in the lower half, are a's.
static inline void split_pairs(Floats a, Floats b, Bits* parts) {
    for (int part = 0; part < PARTS; part++) {
        const Bits upper_a = bit_cast<Bits>(a) & 0xffff0000, upper_b = bit_cast<Bits>(b) & 0xffff0000;
        parts[part] = upper_a >> 16 | upper_b;
        a -= bit_cast<Floats>(upper_a);
        b -= bit_cast<Floats>(upper_b);
    }
}

// A row's parts: (step, part, 32 numbers). One line more lies between rows, so that those of a tile do not all fall
// into the same sets of the cache.
static inline int64_t split_row(int64_t d_in) { return PARTS * d_in + SPLIT_STEP; }

static inline void split_numbers(const float* x, bf16* to, int64_t d_in) {
    for (int64_t j = 0; j < d_in; j += SPLIT_STEP, to += PARTS * SPLIT_STEP) {
        // Even and odd numbers in turn, as they lie in memory.
        const Floats low = load(x + j), high = load(x + j + LANES);
        const Floats even = shuffle(low, high, [](int i) { return 2 * i; });
        const Floats odd = shuffle(low, high, [](int i) { return 2 * i + 1; });
        Bits parts[PARTS];
        split_pairs(even, odd, parts);
        for (int part = 0; part < PARTS; part++) store(parts[part], to + part * SPLIT_STEP);
    }
}

// A panel of floats (d_in, PANEL) as tiles: (step, part, half of the columns, 16 pairs of rows, 16 columns, 2).
static inline void split_panel(const float* panel, bf16* to, int64_t d_in) {
    for (int64_t l = 0; l < d_in; l += 2, panel += 2 * PANEL)
        for (int half = 0; half < 2; half++) {
            Bits parts[PARTS];
            split_pairs(load(panel + half * LANES), load(panel + PANEL + half * LANES), parts);
            bf16* const at =
                to + l / SPLIT_STEP * PARTS * 2 * TILE_NUMBERS + half * TILE_NUMBERS + l % SPLIT_STEP * LANES;
            for (int part = 0; part < PARTS; part++) store(parts[part], at + 2 * part * TILE_NUMBERS);
        }
}

// sums (16 BLOCKS, PANEL) = split rows by a split panel. gap() is called 6 times for every step.
template <int BLOCKS, class Gap>
static inline void split_tile_sums(const bf16* x, int64_t d_in, const bf16* tiles, void* sums, Gap gap) {
    const int64_t stride = 2 * split_row(d_in);
    zero_sums<BLOCKS>();
    const bf16 *a = x, *b = tiles;
    const auto rows = [&](int part) {
        load_tile<4>(a + part * SPLIT_STEP, stride);
        if (BLOCKS == 2) load_tile<5>(a + part * SPLIT_STEP + TILE_ROWS * split_row(d_in), stride);
    };
    const auto panel = [&](int part) {
        load_tile<6>(b + 2 * part * TILE_NUMBERS, 64);
        load_tile<7>(b + (2 * part + 1) * TILE_NUMBERS, 64);
    };
    const auto multiply = [&] {
        add_tile_products<0, 4, 6>();
        add_tile_products<1, 4, 7>();
        if (BLOCKS == 2) {
            add_tile_products<2, 5, 6>();
            add_tile_products<3, 5, 7>();
        }
        gap();
    };
    // The largest product comes last. From one pair of parts to the next, only one of the two is loaded.
    for (int64_t l = 0; l < d_in; l += SPLIT_STEP, a += PARTS * SPLIT_STEP, b += PARTS * 2 * TILE_NUMBERS) {
        rows(0), panel(2), multiply();
        panel(1), multiply();
        rows(1), multiply();
        panel(0), multiply();
        rows(2), multiply();
        rows(0), multiply();
    }
    store_sums<BLOCKS>(sums);
}

// Rows by one panel, whose sums come from tiles.
struct Fp32Block {
    Fp32Panel w;
    float* y;
    int64_t y_ld;

    [[gnu::always_inline]] void finish(int64_t r, int64_t n, const int32_t* sums) const {
        finish_float_rows(w, n, sums, y + r * y_ld, y_ld);
    }
};

// n rows by one panel, which is split into `tiles`.
template <class Pipeline>
static inline void split_product(const bf16* x, const Fp32Panel& w, float* y, int64_t n, int64_t y_ld, bf16* tiles,
                                 Pipeline& pipeline) {
    split_panel(w.weights, tiles, w.d_in);
    for (int64_t i = 0, rows; i < n; i += rows) {
        rows = std::min(n - i, 2 * TILE_ROWS);
        // These rows' part of the next panel is fetched during their products.
        const int64_t share = w.next ? w.d_in * PANEL / LANES * rows / n * 64 : 0;
        const auto take = [&](auto blocks) {
            pipeline.take({w, y + i * y_ld, y_ld}, rows, 6 * w.d_in / SPLIT_STEP,
                          reinterpret_cast<const char*>(w.next) + i * share / rows, share, [&](void* sums, auto gap) {
                              split_tile_sums<decltype(blocks)::value>(x + i * split_row(w.d_in), w.d_in, tiles, sums,
                                                                       gap);
                          });
        };
        if (rows > TILE_ROWS)
            take(std::integral_constant<int, 2>());
        else
            take(std::integral_constant<int, 1>());
    }
}

static inline bf16* split_panel_memory(int64_t n) {
    static thread_local ScratchBuffer<bf16> memory;
    return memory.take(n);
}

// The parts of rows, in memory of the caller's; none where tiles do not take such rows.
struct SplitRows {
    bf16* numbers;

    void take(int64_t i, const float* row, int64_t d_in, bool = false) const {
        if (splits(d_in)) split_numbers(row, numbers + i * split_row(d_in), d_in);
    }

    // As HoldsRows describes it; x: the rows themselves, for products without tiles.
    template <class Next>
    void panel_products(const float* x, int64_t i, int64_t n, const Weight& weight, int64_t first, int64_t end,
                        Next next, bool relu, float* y, int64_t y_ld) const {
        const int64_t d_in = weight.d_in;
        if constexpr (HAS_TILES) {
            if (splits(d_in)) {
                bf16* const tiles = split_panel_memory(PARTS * d_in * PANEL);
                TilePipeline<Fp32Block> pipeline;
                for (int64_t p = first; p < end; p++)
                    split_product(numbers + i * split_row(d_in), float_panel_of<float>(weight, d_in, p, next(p), relu),
                                  y + (p - first) * PANEL, n, y_ld, tiles, pipeline);
                return;
            }
        }
        for (int64_t p = first; p < end; p++, y += PANEL)
            fp32_panel_product(x + i * d_in, float_panel_of<float>(weight, d_in, p, next(p), relu), y, n, y_ld);
    }
};

struct SplitMemory {
    Aligned<bf16> numbers;
    int64_t widest;

    SplitMemory(int64_t n, int64_t d_in)
        : numbers(SearchTiles::allowed() ? aligned<bf16>((n + MORE_TILE_ROWS) * split_row(d_in)) : nullptr),
          widest(d_in) {}
    SplitRows rows(int64_t first = 0) const { return {numbers ? numbers.get() + first * split_row(widest) : nullptr}; }
};

// y (n, d_out) = x (n, d_in) · Wᵀ + bias, then ReLU if asked for; rows: x, taken.
[[gnu::noinline, maybe_unused]] static void fp32_product(const float* x, const SplitRows& rows, const Weight& weight,
                                                         float* y, int64_t n, bool relu, ThreadTeam& team) {
    share_panels(team, weight, [&](int64_t first, int64_t end) {
        const auto next = [](int64_t p) { return p + 1; };
        rows.panel_products(x, 0, n, weight, first, end, next, relu, y + first * PANEL, weight.d_out);
    });
}

}  // namespace heed
