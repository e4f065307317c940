// Products of large bf16 matrices on AMX tiles, for training. A step has the same few shapes three times over: x Wᵀ,
// dy W and dyᵀ x; the last one, the gradient of a weight, is added to its fp32 sum at once.
//
// All threads first store the second operand as the processor reads it, in panels of 32 columns. Then a thread takes
// 128 rows of the result, stores their first operand tile by tile, and works block by block, 32 x 32 sums in four
// tiles; what its rows need again soon stays in its cache. A block's sums are written to memory while the tiles of the
// next one multiply: the processor does both at the same time. Sums are taken in one order, however many threads there
// are.

#include <mutex>

#include "exports.h"
#include "threads.h"
#include "tile_registers.h"

#if defined(HEED_TILES)
# include "tile_layouts.h"

namespace heed {

constexpr int64_t SIDE = 32;     // rows and columns of a block of the result: 2 x 2 tiles of 16 x 16 sums
constexpr int64_t ROWS = 128;    // of the result, a thread's at a time
constexpr int64_t DEPTH = 1024;  // products that are summed before the sum is added to the result in memory
// Numbers in a group of panels: a thread multiplies all of its rows by one group before it takes the next.
constexpr int64_t GROUP = 1 << 18;

[[maybe_unused]] static ScratchBuffer<bf16> shared_panels;  // of the one product that is computed at a time
[[maybe_unused]] static std::mutex one_at_a_time;
[[maybe_unused]] static thread_local ScratchBuffer<bf16> own_rows;

// A block of sums on its way to the result, row by row: fp32 sums are added, bf16 results get the bias and are written.
template <bool ADD>
struct BlockWriter {
    const float* from;
    char* to;
    int64_t step, rows = 0;  // bytes between the result's rows; rows left
    int64_t columns;
    Floats bias[2];

    void write_row() {
        const Floats left = load(from), right = load(from + 16);
        if constexpr (ADD) {
            float* sums = reinterpret_cast<float*>(to);
            store_first(left + load_first(sums, columns), sums, columns);
            store_first(right + load_first(sums + 16, right_columns()), sums + 16, right_columns());
        } else {
            store_first(rounded_to_bf16(left + bias[0], right + bias[1]), reinterpret_cast<bf16*>(to), columns);
        }
        from += SIDE;
        to += step;
        rows--;
    }
    int64_t right_columns() const { return std::max<int64_t>(0, columns - 16); }
};

// One product, whose threads share what this holds.
template <bool ADD>
struct TileProduct {
    const Operand a, b;
    const bf16* bias;  // or null
    char* result;
    const int64_t ld, m, n, depth;
    bf16* const panels;  // b, (panel, k, 2 tiles)

    // In tiles of 32 numbers or blocks of 32 rows and columns.
    const int64_t n_k = (depth + 31) / 32, n_panels = (n + 31) / 32, n_blocks = (m + 31) / 32;
    const int64_t most_k = ADD ? std::min(DEPTH / 32, n_k) : n_k;

    void store_panels(int64_t k) const {
        for (int64_t p = 0; p < n_panels; p++) {
            bf16* const to = panels + (p * n_k + k) * 2 * TILE_NUMBERS;
            with_square(b, p * 32, k * 32, n, depth, [&](const bf16* from, int64_t from_ld) {
                b.transposed ? store_row_pairs(from, from_ld, to) : store_column_pairs(from, from_ld, to);
            });
        }
    }

    // Blocks m0 to m1 of a, tiles k0 to k1, as (block, k, 2 tiles).
    void store_blocks(bf16* rows, int64_t m0, int64_t m1, int64_t k0, int64_t k1) const {
        for (int64_t i = m0; i < m1; i++)
            for (int64_t k = k0; k < k1; k++) {
                bf16* const to = rows + ((i - m0) * most_k + k - k0) * 2 * TILE_NUMBERS;
                with_square(a, i * 32, k * 32, m, depth, [&](const bf16* from, int64_t from_ld) {
                    a.transposed ? store_rows_transposed(from, from_ld, to) : store_rows(from, from_ld, to);
                });
            }
        compiler_barrier();
    }

    // Blocks m0 to m1 of the result: their sums from k0 to k1. The last block is left to `writer`.
    void multiply(const bf16* rows, float* sums, BlockWriter<ADD>& writer, int64_t m0, int64_t m1, int64_t k0,
                  int64_t k1) const {
        // The block before is written between the multiplications of this one, evenly, once its sums are in memory.
        const int64_t late = k1 - k0 > 4 ? 2 : 1;  // by then the sums of the block before have reached memory
        const int64_t rows_at_a_time = (SIDE + k1 - k0 - late - 1) / std::max<int64_t>(1, k1 - k0 - late);
        const int64_t group = std::max<int64_t>(1, GROUP / ((k1 - k0) * 2 * TILE_NUMBERS));
        // All rows by one group of panels, which stays in the cache, before the next group.
        for (int64_t p0 = 0; p0 < n_panels; p0 += group)
            for (int64_t turn = 0, n_p = std::min(group, n_panels - p0); turn < (m1 - m0) * n_p; turn++) {
                const int64_t i = m0 + turn / n_p, p = p0 + turn % n_p;
                zero_tile<0>();
                zero_tile<1>();
                zero_tile<2>();
                zero_tile<3>();
                for (int64_t k = k0; k < k1; k++) {
                    multiply_tiles(rows + ((i - m0) * most_k + k - k0) * 2 * TILE_NUMBERS,
                                   panels + (p * n_k + k) * 2 * TILE_NUMBERS);
                    if (k >= k0 + late)
                        for (int64_t r = 0; r < rows_at_a_time && writer.rows; r++) writer.write_row();
                }
                // `sums` is free again; this block is written during the next one.
                while (writer.rows) writer.write_row();
                store_tile<0>(sums, 128);
                store_tile<1>(sums + 16, 128);
                store_tile<2>(sums + 16 * SIDE, 128);
                store_tile<3>(sums + 16 * SIDE + 16, 128);
                aim(writer, sums, i, p);
            }
    }

    // At block (i, p) of the result.
    void aim(BlockWriter<ADD>& writer, const float* sums, int64_t i, int64_t p) const {
        const int64_t size = ADD ? sizeof(float) : sizeof(bf16);
        writer.from = sums;
        writer.to = result + (i * SIDE * ld + p * SIDE) * size;
        writer.step = ld * size;
        writer.rows = std::min(SIDE, m - i * SIDE);
        writer.columns = n - p * SIDE;
        if constexpr (!ADD) {
            writer.bias[0] = bias ? load_first(bias + p * SIDE, writer.columns) : Floats{};
            writer.bias[1] = bias ? load_first(bias + p * SIDE + 16, writer.right_columns()) : Floats{};
        }
    }
};

template <bool ADD>
static void tile_product(Operand a, Operand b, const bf16* bias, void* result, int64_t ld, int64_t m, int64_t n,
                         int64_t depth) {
    const std::lock_guard<std::mutex> alone(one_at_a_time);  // Python's threads may call this at the same time
    const int64_t n_k = (depth + 31) / 32, n_panels = (n + 31) / 32;
    const TileProduct<ADD> product{
        a, b, bias, static_cast<char*>(result), ld, m, n, depth, shared_panels.take(n_panels * n_k * 2 * TILE_NUMBERS)};
    const int64_t n_blocks = product.n_blocks, most_k = product.most_k;
    // Fewer rows a turn where there would not be two turns for each thread.
    int64_t n_rows = ROWS / SIDE;
    while (n_rows > 1 && (n_blocks + n_rows - 1) / n_rows < 2 * omp_get_max_threads()) n_rows /= 2;
    parallel([&](ThreadTeam& team) {
        const Tiles tiles;
        // Panels are complete on all threads before any of them multiplies.
        team.split(n_k, [&](int64_t k) { product.store_panels(k); });
        alignas(64) float sums[SIDE * SIDE];
        BlockWriter<ADD> writer;
        team.share((n_blocks + n_rows - 1) / n_rows, 1, [&](int64_t part) {
            bf16* const rows = own_rows.take(n_rows * most_k * 2 * TILE_NUMBERS);
            const int64_t m0 = part * n_rows, m1 = std::min(n_blocks, m0 + n_rows);
            // Where sums are added in memory, only as many products at a time as keep both operands in the cache.
            for (int64_t k0 = 0; k0 < n_k; k0 += most_k) {
                const int64_t k1 = std::min(n_k, k0 + most_k);
                product.store_blocks(rows, m0, m1, k0, k1);
                product.multiply(rows, sums, writer, m0, m1, k0, k1);
            }
            while (writer.rows) writer.write_row();
        });
    });
}

}  // namespace heed
#endif

extern "C" {
int32_t has_tiles() { return heed::tiles_allowed(); }

heed::Status tile_product(const heed::bf16* a, int64_t a_ld, int32_t a_transposed, const heed::bf16* b, int64_t b_ld,
                          int32_t b_transposed, const heed::bf16* bias, void* c, int64_t c_ld, int64_t m, int64_t n,
                          int64_t depth, int32_t add) {
    return heed::status_of([&] {
#if defined(HEED_TILES)
        const auto product = add ? heed::tile_product<true> : heed::tile_product<false>;
        product({a, a_ld, a_transposed != 0}, {b, b_ld, b_transposed != 0}, bias, c, c_ld, m, n, depth);
#else
        (void)a, (void)a_ld, (void)a_transposed, (void)b, (void)b_ld, (void)b_transposed, (void)bias, (void)c;
        (void)c_ld, (void)m, (void)n, (void)depth, (void)add;
        throw heed::NotHere();
#endif
    });
}
}
