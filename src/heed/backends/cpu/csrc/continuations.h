// The k best continuations of each sentence, best first; of equal ones first that of the earlier row, then of the
// smaller id. Logits are read in pieces of the vocabulary, by any thread, and need not all exist at once.

#pragma once

#include "layers.h"

namespace heed {

constexpr int64_t PIECE = 512;  // ids

struct Candidate {
    double value;
    int64_t index;
    bool before(const Candidate& other) const {
        return value > other.value || (value == other.value && index < other.index);
    }
};

// Inserts a candidate into the `size` best so far, in order, of which at most `most` are kept. Returns the new size.
static inline int64_t insert(Candidate candidate, Candidate* best, int64_t size, int64_t most) {
    int64_t at = size;
    while (at > 0 && candidate.before(best[at - 1])) at--;
    if (at == most) return size;
    const int64_t last = std::min(size, most - 1);
    for (int64_t i = last; i > at; i--) best[i] = best[i - 1];
    best[at] = candidate;
    return last + 1;
}

class Continuations : public ContinuationRequest {
public:
    explicit Continuations(const ContinuationRequest& request) : ContinuationRequest(request) {}

    void begin(int64_t pieces) {
        n_pieces = pieces;
        n_threads = most_threads();
        const size_t lists = size_t(n_rows * n_threads);
        sums.reset(new Sum[size_t(n_rows * n_pieces)]);
        best.reset(new Candidate[lists * size_t(k)]);
        sizes.reset(new int64_t[lists]());
    }

    // Reads row r's logits z of a piece, `count` ids from `first` on; a thread takes pieces in their order.
    void take(int64_t thread, const float* z, int64_t r, int64_t piece, int64_t first, int64_t count) {
        const int64_t row = rows[r], list = thread * n_rows + r;
        const bool ends = may_end[row / beam];
        Candidate* const mine = best.get() + list * k;
        int64_t& size = sizes[size_t(list)];
        const auto consider = [&](int64_t j) {
            const int64_t id = first + j;
            if ((size == k && !(z[j] > float(mine[k - 1].value))) || never[id] || (id == eos && !ends)) return;
            size = insert({z[j], row % beam * vocab + id}, mine, size, k);
        };
        const Largest tops = largest_by_chain(z, count);
        const float top = largest_lane(tops);
        TwoVectorsBits above[PIECE / (2 * LANES)] = {};
        const float bar = size == k ? float(mine[k - 1].value) : size ? -INFINITY : below_some(tops);
        const float shift = top > -INFINITY ? top * LOG2_E : 0;  // a piece of -infinity has the sum 0, or nearly
        sums[size_t(r * n_pieces + piece)] = {top * LOG2_E, sum_of_powers(z, shift, count, bar, above)};
        if (const int32_t* const ids = allowed[row]) {
            const int32_t* const end = ids + n_allowed[row];
            for (const int32_t* id = std::lower_bound(ids, end, first); id < end && *id < first + count; id++)
                consider(*id - first);
            return;
        }
        // 64 ids at a time: most have none
        for (int64_t j = 0; j < count; j += 64)
            for (uint64_t lanes = load_as<uint64_t>(above + j / (2 * LANES)); lanes; lanes &= lanes - 1)
                consider(j + __builtin_ctzll(lanes));
        if (size < k && bar > -INFINITY) {  // some that were above the bar are not wanted
            size = 0;
            for (int64_t j = 0; j < count; j++) consider(j);
        }
    }

    // indices: row in its sentence · vocab + id. Where fewer than k exist, the value is -infinity. Where a row's logits
    // have no finite sum, all values of its sentence are NaN.
    void finish(double* values, int64_t* indices) const {
        std::unique_ptr<Candidate[]> chosen(new Candidate[size_t(k)]);
        int64_t r = 0;
        for (int64_t s = 0; s < n_sentences; s++) {
            int64_t size = 0;
            bool finite = true;
            for (; r < n_rows && rows[r] / beam == s; r++) {
                const double log_total = log_sum(r);
                finite &= std::isfinite(log_total);
                for (int64_t t = 0; t < n_threads; t++) {
                    const int64_t list = t * n_rows + r;
                    for (int64_t c = 0; c < sizes[size_t(list)]; c++) {
                        const Candidate of_row = best[size_t(list * k + c)];
                        size = insert({log_probs[rows[r]] + (of_row.value - log_total), of_row.index}, chosen.get(),
                                      size, k);
                    }
                }
            }
            for (int64_t c = 0; c < k; c++) {
                values[s * k + c] = !finite ? NAN : c < size ? chosen[size_t(c)].value : -INFINITY;
                indices[s * k + c] = c < size ? chosen[size_t(c)].index : 0;
            }
        }
    }

private:
    struct Sum {  // total: of 2^(logit · LOG2_E - top)
        float top, total;
    };
    int64_t n_pieces = 0, n_threads = 0;
    std::unique_ptr<Sum[]> sums;        // (row, piece)
    std::unique_ptr<Candidate[]> best;  // (thread, row, k), by logits
    std::unique_ptr<int64_t[]> sizes;   // (thread, row)

    // A number that is below k of these, or -infinity: below the least of 16 that stand for as many parts, or of 8.
    float below_some(const Largest& of) const {
        if (k > 16) return -INFINITY;
        const auto below = [](Floats x) {
            return std::nextafter(-folded(-x, [](Floats a, Floats b) { return larger(a, b); }), -INFINITY);
        };
        if constexpr (LANES == 16) {
            const Floats all = larger(larger(of.a, of.b), larger(of.c, of.d));
            return below(k > 8 ? all : larger(all, shuffle(all, all, [](int i) { return i ^ 8; })));
        } else {
            const auto less = [](Floats a, Floats b) { return -larger(-a, -b); };
            const Floats ac = larger(of.a, of.c), bd = larger(of.b, of.d);
            if constexpr (LANES == 8) return below(k > 8 ? less(ac, bd) : larger(ac, bd));
            return below(k > 8 ? less(less(of.a, of.b), less(of.c, of.d)) : less(ac, bd));
        }
    }

    double log_sum(int64_t r) const {  // of row r's exponentials
        const Sum* const pieces = sums.get() + r * n_pieces;
        float top = pieces[0].top;
        for (int64_t p = 1; p < n_pieces; p++) top = std::max(top, pieces[p].top);
        double total = 0;
        for (int64_t p = 0; p < n_pieces; p++)
            total += pieces[p].total * double(exponential((pieces[p].top - top) / LOG2_E));
        return double(top) / double(LOG2_E) + std::log(total);
    }
};

static void best_continuations(const float* logits, Continuations& wanted, double* values, int64_t* indices) {
    const int64_t vocab = wanted.vocab, n = wanted.n_rows, n_pieces = (vocab + PIECE - 1) / PIECE;
    wanted.begin(n_pieces);
    parallel_rows(n, false, [&](ThreadTeam& team) {
        team.share_last(n, 1, [&](int64_t r) {
            for (int64_t piece = 0; piece < n_pieces; piece++) {
                const int64_t first = piece * PIECE, count = std::min(PIECE, vocab - first);
                wanted.take(team.index, logits + r * vocab + first, r, piece, first, count);
            }
        });
    });
    wanted.finish(values, indices);
}

// The best continuations by the logits x · Wᵀ: of them, some rows' logits of a piece exist at a time, in a thread's
// cache.
//
// product: as HoldsRows describes panel_products. begin(team): what each thread does first.
template <class Begin, class Product>
static void product_continuations(const Weight& weight, int64_t n, int64_t rows_at_a_time, Continuations& wanted,
                                  double* values, int64_t* indices, Begin begin, Product product) {
    constexpr int64_t PANELS = PIECE / PANEL;
    const int64_t n_pieces = (n_panels(weight) + PANELS - 1) / PANELS;
    wanted.begin(n_pieces);
    parallel_rows(n, false, [&](ThreadTeam& team) {
        Scratch scratch;
        const SearchTiles tiles;
        begin(team);
        team.share(n_pieces, 1, [&](int64_t piece) {
            float* const z = scratch.take(rows_at_a_time * PIECE);
            const int64_t first = piece * PANELS, end = std::min(first + PANELS, n_panels(weight));
            const int64_t count = std::min(end * PANEL, weight.d_out) - first * PANEL;
            for (int64_t i = 0; i < n; i += rows_at_a_time) {
                const int64_t some = std::min(rows_at_a_time, n - i);
                // Every block of rows fetches some panels of the piece that this thread will probably take next.
                const auto next = [&](int64_t p) {
                    const bool fetch = (p - first) * n / PANELS / rows_at_a_time * rows_at_a_time == i;
                    return fetch ? p + team.size * PANELS : n_panels(weight);
                };
                product(i, some, first, end, next, z, PIECE);
                for (int64_t r = 0; r < some; r++)
                    wanted.take(team.index, z + r * PIECE, i + r, piece, first * PANEL, count);
            }
        });
    });
    wanted.finish(values, indices);
}

template <class Memory>
[[maybe_unused]] static void narrow_best_continuations(const float* x, const Weight& weight, Continuations& wanted,
                                                       double* values, int64_t* indices) {
    const int64_t n = wanted.n_rows;
    const Memory memory(n, weight.d_in);
    const auto rows = memory.rows();
    product_continuations(
        weight, n, SearchTiles::allowed() ? 32 : Memory::ROWS_AT_A_TIME, wanted, values, indices,
        [&](ThreadTeam& team) { team.split(n, [&](int64_t i) { rows.take(i, x + i * weight.d_in, weight.d_in); }); },
        [&](int64_t i, int64_t some, int64_t first, int64_t end, auto next, float* z, int64_t z_ld) {
            rows.panel_products(i, some, weight, first, end, next, false, z, z_ld);
        });
}

[[maybe_unused]] static void fp32_best_continuations(const float* x, const Weight& weight, Continuations& wanted,
                                                     double* values, int64_t* indices) {
    const int64_t n = wanted.n_rows, d_in = weight.d_in;
    const SplitMemory memory(n, d_in);
    const SplitRows rows = memory.rows();
    product_continuations(
        // Many, since each time the panels are split again.
        weight, n, splits(d_in) ? 128 : rows_at_a_time(FP32_ROWS), wanted, values, indices,
        [&](ThreadTeam& team) { team.split(n, [&](int64_t i) { rows.take(i, x + i * d_in, d_in); }); },
        [&](int64_t i, int64_t some, int64_t first, int64_t end, auto next, float* z, int64_t z_ld) {
            rows.panel_products(x, i, some, weight, first, end, next, false, z, z_ld);
        });
}

}  // namespace heed
