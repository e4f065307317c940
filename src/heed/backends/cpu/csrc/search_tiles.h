// Products of a search's rows with packed weights on AMX tiles, a block of 32 or 16 rows by a panel of weights at a
// time.
//
// A block's sums are finished (scaled, added to a bias, stored) between the instructions that multiply the next block:
// the processor does both at the same time, and instructions on tiles in close succession slow each other down.

#pragma once

#include <algorithm>
#include <optional>

#include "tile_registers.h"

namespace heed {

constexpr int64_t PANEL = 32;  // outputs
constexpr int64_t TILE_ROWS = 16;

// A thread's tiles, if the processor has them and the system allows them: one object per thread and parallel region.
struct SearchTiles {
    static bool allowed() {
        if constexpr (!HAS_TILES) return false;
        static const bool yes = tiles_allowed();
        return yes;
    }
    // Whether they take rows of this many bytes: whole rows of tiles.
    static bool take(int64_t row_bytes) { return allowed() && row_bytes % 64 == 0; }
    std::optional<Tiles> tiles;
    SearchTiles() {
        if (allowed()) tiles.emplace();
    }
};

template <bool INT8, int SUM, int A, int B>
[[gnu::always_inline]] static inline void add_products_of_tiles() {
    if constexpr (INT8)
        add_byte_tile_products<SUM, A, B>();
    else
        add_tile_products<SUM, A, B>();
}

template <int BLOCKS>
[[gnu::always_inline]] static inline void zero_sums() {
    zero_tile<0>();
    zero_tile<1>();
    if (BLOCKS == 2) {
        zero_tile<2>();
        zero_tile<3>();
    }
    compiler_barrier();
}

template <int BLOCKS>
[[gnu::always_inline]] static inline void store_sums(void* sums) {
    char* const to = static_cast<char*>(sums);
    constexpr int64_t ROW = 4 * PANEL;
    store_tile<0>(to, ROW);
    store_tile<1>(to + 64, ROW);
    if (BLOCKS == 2) {
        store_tile<2>(to + TILE_ROWS * ROW, ROW);
        store_tile<3>(to + TILE_ROWS * ROW + 64, ROW);
    }
}

// sums (16 BLOCKS, PANEL) = rows of x by one panel, in 32-bit integers if INT8, or else in float. The panel is as the
// products by vectors read it: a row of a tile holds four bytes of each of 16 outputs. gap() is called 2 BLOCKS times
// for every 64 bytes of a row.
template <int BLOCKS, bool INT8, class Gap>
static inline void tile_sums(const void* x, int64_t row_bytes, const void* panel, void* sums, Gap gap) {
    const char *const rows = static_cast<const char*>(x), *const weights = static_cast<const char*>(panel);
    constexpr int64_t PANEL_BYTES = 4 * PANEL;
    zero_sums<BLOCKS>();
    for (int64_t l = 0; l < row_bytes; l += 64) {
        load_tile<4>(rows + l, row_bytes);
        load_tile<6>(weights + l * PANEL, PANEL_BYTES);
        add_products_of_tiles<INT8, 0, 4, 6>();
        gap();
        load_tile<7>(weights + l * PANEL + 64, PANEL_BYTES);
        add_products_of_tiles<INT8, 1, 4, 7>();
        gap();
        if (BLOCKS == 2) {
            load_tile<5>(rows + TILE_ROWS * row_bytes + l, row_bytes);
            add_products_of_tiles<INT8, 2, 5, 6>();
            gap();
            add_products_of_tiles<INT8, 3, 5, 7>();
            gap();
        }
    }
    store_sums<BLOCKS>(sums);
}

// Stores n rows of `width` results. result(columns) gives a function of a row's number and its sums, for 16 columns:
// what it needs besides the sums is read once.
template <class U, class Result>
[[gnu::always_inline]] static inline void finish_tile_rows(int64_t width, int64_t n, const int32_t* sums, U* y,
                                                           int64_t y_ld, Result result) {
    const auto left = result(std::integral_constant<int64_t, 0>());
    const auto right = result(std::integral_constant<int64_t, LANES>());
    if (width == PANEL) {
        for (int64_t i = 0; i < n; i++, sums += PANEL, y += y_ld) {
            store_all(left(i, sums), y);
            store_all(right(i, sums), y + LANES);
        }
    } else {
        for (int64_t i = 0; i < n; i++, sums += PANEL, y += y_ld) {
            store_first(left(i, sums), y, width);
            store_first(right(i, sums), y + LANES, std::max(int64_t(0), width - LANES));
        }
    }
}

[[gnu::always_inline]] static inline Floats float_result(Floats sum, Floats bias, bool relu) {
    const Floats y = sum + bias;
    return relu ? larger(Floats{}, y) : y;  // in this order NaN stays NaN
}

// The same of sums in float.
template <class Panel, class U>
[[gnu::always_inline]] static inline void finish_float_rows(const Panel& w, int64_t n, const int32_t* sums, U* y,
                                                            int64_t y_ld) {
    finish_tile_rows(w.width, n, sums, y, y_ld, [&w](auto columns) {
        constexpr int64_t J = decltype(columns)::value;
        return [bias = load(w.bias + J), relu = w.relu](int64_t, const int32_t* of) {
            return float_result(load_as<Floats>(of + J), bias, relu);
        };
    });
}

constexpr int64_t LEAST_ROWS = 2;  // that are finished at a time

// Consecutive blocks of sums. Block: finish(r, n, sums) does what is left to do with the sums of n rows from r
// on.
template <class Block>
class TilePipeline {
public:
    TilePipeline() {}
    TilePipeline(const TilePipeline&) = delete;
    ~TilePipeline() { finish(n_left_); }

    // multiply(sums, gap) computes the sums of the next block, of n_rows rows, and calls gap() n_gaps times, which
    // finishes rows of the block before and fetches `fetch_bytes` from `fetch` on.
    template <class Multiply>
    void take(const Block& block, int64_t n_rows, int64_t n_gaps, const char* fetch, int64_t fetch_bytes,
              Multiply multiply) {
        // Two buffers take turns: one is filled while the rows of the other are finished.
        int32_t* const sums = sums_[turn_ ^= 1];
        const int64_t rows_at_a_time = std::max(LEAST_ROWS, (n_left_ + n_gaps - 1) / n_gaps);
        const int64_t fetched_at_a_time = (fetch_bytes / 64 + n_gaps - 1) / n_gaps * 64;
        multiply(sums, [&] {
            finish(std::min(rows_at_a_time, n_left_));
            for (int64_t at = std::min(fetched_at_a_time, fetch_bytes); at > 0;
                 at -= 64, fetch += 64, fetch_bytes -= 64)
                __builtin_prefetch(fetch, 0, 2);
        });
        finish(n_left_);
        block_ = block;
        n_left_ = n_rows;
        row_ = 0;
        from_ = sums;
    }

private:
    alignas(64) int32_t sums_[2][2 * TILE_ROWS * PANEL];
    Block block_;
    int64_t n_left_ = 0, row_ = 0;
    const int32_t* from_ = nullptr;
    int turn_ = 0;

    [[gnu::always_inline]] void finish(int64_t n) {
        if (n == 0) return;
        block_.finish(row_, n, from_);
        n_left_ -= n;
        row_ += n;
        from_ += n * PANEL;
    }
};

// Up to this many rows beyond those asked for may be read; their results are discarded.
constexpr int64_t MORE_TILE_ROWS = TILE_ROWS - 1;
// With fewer rows left, vectors are faster: where rows are short, passing the sums through memory costs too much.
static inline int64_t fewest_tile_rows(int64_t row_bytes) { return row_bytes < 512 ? 5 : 1; }

template <class Block, class BlockOf>
static inline void multiply_panels_by_tiles(int64_t row_bytes, int64_t n, int64_t first, int64_t end,
                                            BlockOf block_of) {
    TilePipeline<Block> pipeline;
    for (int64_t p = first; p < end; p++) {
        const Block all = block_of(p);
        // Blocks of 32 rows, and of 16 at the end; each fetches its share of the next panel meanwhile.
        int64_t i = 0;
        for (int64_t rows; i < n && n - i >= fewest_tile_rows(row_bytes); i += rows) {
            rows = std::min(n - i, 2 * TILE_ROWS);
            const Block block = all.from(i);
            const char* const fetch = reinterpret_cast<const char*>(all.w.next);
            const int64_t share = fetch ? row_bytes * PANEL / 64 * rows / n * 64 : 0;
            const auto take = [&](auto blocks) {
                constexpr int BLOCKS = decltype(blocks)::value;
                pipeline.take(block, rows, row_bytes / 64 * 2 * BLOCKS, fetch + i * share / rows, share,
                              [&](void* sums, auto gap) {
                                  tile_sums<BLOCKS, Block::INT8>(block.x, row_bytes, all.w.weights, sums, gap);
                              });
            };
            if (rows > TILE_ROWS)
                take(std::integral_constant<int, 2>());
            else
                take(std::integral_constant<int, 1>());
        }
        // A few rows are left, for which vectors are faster.
        all.multiply(i, n);
    }
}

// n rows of this many bytes by the panels from `first` to `end`. block_of(p): all rows by panel p.
template <class Block, class BlockOf>
static inline void multiply_panels(int64_t row_bytes, int64_t n, int64_t first, int64_t end, BlockOf block_of) {
    if constexpr (HAS_TILES) {
        if (SearchTiles::take(row_bytes)) return multiply_panels_by_tiles<Block>(row_bytes, n, first, end, block_of);
    }
    for (int64_t p = first; p < end; p++) block_of(p).multiply(0, n);
}

}  // namespace heed
