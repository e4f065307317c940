// Matrix products in float, whose rows never depend on each other, to the last bit, nor on the number of threads; and
// how threads share products with packed weights.

#pragma once

#include <type_traits>
#include <utility>

#include "exports.h"
#include "search_tiles.h"
#include "threads.h"

namespace heed {

// The sums of a block of rows by some vectors stay in registers: AVX-512 and 64-bit Arm have 32 of them, AVX2 has 16, of
// which each set leaves some for the numbers that are multiplied. Compilers keep an array that a loop indexes in memory,
// so the sums are written out, one for each index I: that of row I / VECS and vector I % VECS.

// With 32 registers that holds wherever the compiler puts the block. With fewer it does not: the constants of what comes
// behind the sums would be held through the loop. There a block is a function of its own.
#if HEED_LANES == 16
# define HEED_BLOCK [[gnu::always_inline]] static inline
#else
# define HEED_BLOCK [[gnu::noinline]] static
#endif

// sum += four steps of a · b, whose numbers of a are consecutive. With 32 registers they hold 16 sums, a row's
// four numbers for each of eight rows, and a step's two vectors of b.
template <int VECS, size_t... I, size_t... ROW>
[[gnu::always_inline]] static inline void add_four_steps(std::index_sequence<I...>, std::index_sequence<ROW...>,
                                                         Floats* sum, const float* a, int64_t a_row, const float* b,
                                                         int64_t b_ld) {
    const Floats x[] = {load(a + int64_t(ROW) * a_row)...};
    (add_lane_product<0>(sum[I], x[I / VECS], load(b + I % VECS * LANES)), ...);
    (add_lane_product<1>(sum[I], x[I / VECS], load(b + b_ld + I % VECS * LANES)), ...);
    (add_lane_product<2>(sum[I], x[I / VECS], load(b + 2 * b_ld + I % VECS * LANES)), ...);
    (add_lane_product<3>(sum[I], x[I / VECS], load(b + 3 * b_ld + I % VECS * LANES)), ...);
}

// c (rows, VECS vectors) = a · b (k, VECS vectors), a by any strides.
template <int VECS, size_t... I>
HEED_BLOCK void block_product(std::index_sequence<I...>, const float* a, int64_t a_row, int64_t a_col, const float* b,
                              int64_t b_ld, float* c, int64_t c_ld, int64_t k) {
    Floats sum[] = {((void)I, Floats{})...};
    if constexpr (HAS_LANE_PRODUCTS)
        for (; a_col == 1 && k >= LANES; k -= LANES, a += LANES, b += LANES * b_ld)
            add_four_steps<VECS>(std::index_sequence<I...>(), std::make_index_sequence<sizeof...(I) / VECS>(), sum, a,
                                 a_row, b, b_ld);
    const int64_t row[] = {as_given(int64_t(I / VECS) * a_row)...};
#pragma GCC unroll 2
    for (int64_t l = 0; l < k; l++, a += a_col, b += b_ld)
        ((sum[I] += as_loaded(a[row[I]]) * load(b + I % VECS * LANES)), ...);
    (store(sum[I], c + int64_t(I / VECS) * c_ld + I % VECS * LANES), ...);
}

// Of rows whose results exist at a time, about ten, in whole blocks of this height.
constexpr int64_t rows_at_a_time(int64_t block_rows) { return round_up(10, block_rows); }

// As many blocks of this height as there are from row i on; returns the row behind them.
template <int ROWS, int VECS>
static inline int64_t block_rows(int64_t i, const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_ld,
                                 float* c, int64_t c_ld, int64_t m, int64_t k) {
    for (; i + ROWS <= m; i += ROWS)
        block_product<VECS>(std::make_index_sequence<ROWS * VECS>(), a + i * a_row, a_row, a_col, b, b_ld,
                            c + i * c_ld, c_ld, k);
    return i;
}

template <int VECS>
static inline void block_columns(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_ld, float* c,
                                 int64_t c_ld, int64_t m, int64_t k) {
    int64_t i = block_rows<LANES == 8 ? 6 : 7, VECS>(0, a, a_row, a_col, b, b_ld, c, c_ld, m, k);
    i = block_rows<4, VECS>(i, a, a_row, a_col, b, b_ld, c, c_ld, m, k);
    i = block_rows<2, VECS>(i, a, a_row, a_col, b, b_ld, c, c_ld, m, k);
    block_rows<1, VECS>(i, a, a_row, a_col, b, b_ld, c, c_ld, m, k);
}

// c (m, n) = a (m, k) · b (k, n), a by any strides, n a multiple of LANES.
[[maybe_unused]] static void product(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_ld,
                                     float* c, int64_t c_ld, int64_t m, int64_t n, int64_t k) {
    int64_t j = 0;
    for (; j + 2 * LANES <= n; j += 2 * LANES) block_columns<2>(a, a_row, a_col, b + j, b_ld, c + j, c_ld, m, k);
    if (j < n) block_columns<1>(a, a_row, a_col, b + j, b_ld, c + j, c_ld, m, k);
}

// ---------------------------------------------------------------------------------------------------------------------
// Products with packed weights.

static inline int64_t n_panels(const Weight& weight) { return (weight.d_out + PANEL - 1) / PANEL; }

// run(first, end) for some consecutive panels at a time, so that a thread can fetch the next one from memory in time.
template <class Run>
static void share_panels(ThreadTeam& team, const Weight& weight, Run run) {
    const int64_t n = n_panels(weight), some = team.size == 1 ? n : std::max(int64_t(1), n / (4 * team.size));
    team.share((n + some - 1) / some, 1, [&](int64_t part) { run(part * some, std::min(n, (part + 1) * some)); });
}

// A panel of weights in float or bf16, each with d_in numbers.
template <class T>
struct FloatPanel {
    const T *weights, *next;  // next: the panel that will probably be read after this one, or null
    const float* bias;
    int64_t d_in, width;
    bool relu;
};

template <class T>
static inline FloatPanel<T> float_panel_of(const Weight& weight, int64_t d_in, int64_t p, int64_t next, bool relu) {
    const T* const weights = static_cast<const T*>(weight.panels);
    return {weights + p * PANEL * d_in,
            next < n_panels(weight) ? weights + next * PANEL * d_in : nullptr,
            weight.bias + p * PANEL,
            d_in,
            std::min(PANEL, weight.d_out - p * PANEL),
            relu};
}

// A block's share of fetching the next panel: the weights are read once a step, from memory.
static inline void fetch_share(const void* next, int64_t bytes, int64_t i, int64_t rows, int64_t n) {
    const int64_t share = (bytes * rows + n - 1) / n;
    if (next)
        for (int64_t at = 0; at < share; at += 64)
            __builtin_prefetch(static_cast<const char*>(next) + i * share / rows + at, 0, 2);
}

// A Memory(n, widest) holds n rows of at most `widest` numbers as narrow products read them, in bf16 or 8-bit integers.
// memory.rows(first) are those from `first` on:
//   take(i, row, d_in, by_null_offsets) puts a row of float or bf16 there as the i-th, for weights whose offsets are
//   null if so: the row has no negative number then;
//   panel_products(i, n, weight, first, end, next, relu, y, y_ld) multiplies n of them, from the i-th on, by the panels
//   from `first` to `end`; y is for the first of these, and next(p) is the panel that is fetched from memory meanwhile.
// Each result depends on its own row and output alone, and no call writes to memory of another's rows.
template <class Memory, class = void>
struct HoldsRows : std::false_type {};
template <class Memory>
struct HoldsRows<Memory,
                 std::void_t<decltype(Memory(int64_t(), int64_t())),
                             decltype(std::declval<Memory>().rows(int64_t()).take(int64_t(), (const float*)nullptr, 0, bool())),
                             decltype(std::declval<Memory>().rows(int64_t()).take(int64_t(), (const bf16*)nullptr, 0, bool())),
                             decltype(std::declval<Memory>().rows().panel_products(
                                 int64_t(), int64_t(), std::declval<const Weight&>(), int64_t(), int64_t(),
                                 (int64_t(*)(int64_t)) nullptr, bool(), (float*)nullptr, int64_t()))>>
    : std::true_type {};

// y (n, d_out) = x · Wᵀ + bias, then ReLU if asked for.
template <class Rows, class U>
[[gnu::noinline]] static void rows_product(const Rows& x, const Weight& weight, U* y, int64_t n, bool relu,
                                           ThreadTeam& team) {
    share_panels(team, weight, [&](int64_t first, int64_t end) {
        const auto next = [](int64_t p) { return p + 1; };
        x.panel_products(0, n, weight, first, end, next, relu, y + first * PANEL, weight.d_out);
    });
}

// Fewer rows a thread are better computed by all threads together. Each piece of the rows reads all weights again, has a
// last block that is not full, and on tiles may have to split weights: where cores are alike, there are few pieces, as
// many for each thread.
constexpr int64_t MIN_ROWS_PER_THREAD = 16, MIN_ROWS_PER_PIECE = 128;

// In how many pieces threads take n rows; 0 if they should compute them together.
static inline int64_t row_pieces(const ThreadTeam& team, int64_t n) {
    if (FastCores::n) {  // with one piece for each thread, all would wait for the slow cores
        const int64_t least = MIN_ROWS_PER_THREAD * ThreadTeam::PIECES_PER_THREAD * team.size;
        return n < least ? 0 : team.pieces(n / MIN_ROWS_PER_THREAD);
    }
    if (n < MIN_ROWS_PER_THREAD * team.size) return 0;
    if (team.size == 1) return 1;
    return team.size * std::clamp<int64_t>(n / (MIN_ROWS_PER_PIECE * team.size), 1, ThreadTeam::PIECES_PER_THREAD);
}

// run(first, some, team) for n rows, which either all threads compute together or, where there are enough for each, a
// thread takes some of and computes without waiting for the others.
template <class Run>
static void for_rows_by_team(int64_t n, bool one_sentence, Run run) {
    parallel_rows(n, one_sentence, [&](ThreadTeam& team) {
        const SearchTiles tiles;
        const int64_t n_pieces = row_pieces(team, n);
        if (!n_pieces) return run(int64_t(0), n, team);
        team.share_last(n_pieces, 1, [&](int64_t piece) {
            const int64_t first = n * piece / n_pieces;
            ThreadTeam alone;
            run(first, n * (piece + 1) / n_pieces - first, alone);
        });
    });
}

// The same for one product. A small one stays in this thread; where weights are many, all threads share them.
template <class Run>
static void for_product_rows(int64_t n, const Weight& weight, Run run) {
    constexpr int64_t FEW_WEIGHTS = 1 << 16;
    const int64_t n_weights = weight.d_in * weight.d_out;
    if (n * n_weights > FEW_MULTIPLICATIONS && n_weights <= FEW_WEIGHTS) return for_rows_by_team(n, false, run);
    const auto all = [&](ThreadTeam& team) {
        const SearchTiles tiles;
        run(int64_t(0), n, team);
    };
    if (n * n_weights > FEW_MULTIPLICATIONS) return parallel_rows(n, false, all);
    ThreadTeam alone;
    all(alone);
}

template <class Memory, class T, class U>
static void narrow_product(const T* x, const Weight& weight, U* y, int64_t n, bool relu) {
    const Memory memory(n, weight.d_in);
    for_product_rows(n, weight, [&](int64_t first, int64_t some, ThreadTeam& team) {
        const auto rows = memory.rows(first);
        const T* const from = x + first * weight.d_in;
        team.split(some, [&](int64_t i) { rows.take(i, from + i * weight.d_in, weight.d_in, !weight.offsets); });
        rows_product(rows, weight, y + first * weight.d_out, some, relu, team);
    });
}

}  // namespace heed
