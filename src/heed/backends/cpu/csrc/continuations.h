// The k best continuations of each sentence, best first; of equal ones first that of the earlier row, then of the
// smaller id. Logits are read in pieces of the vocabulary, by any thread, and need not all exist at once.

#pragma once

#include "bf16_products.h"
#include "int8_products.h"
#include "row_math.h"

namespace heed {

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

// run(j) for each j of [from, to) with x[j] > bar, as bar was at the beginning of its vector.
template <class Run>
static inline void each_above(const float* x, int64_t from, int64_t to, const float& bar, Run run) {
    int64_t j = from;
    for (; j + LANES <= to; j += LANES)
        for (uint32_t above = lanes_above(load(x + j), bar); above; above &= above - 1) run(j + __builtin_ctz(above));
    for (; j < to; j++)
        if (x[j] > bar) run(j);
}

class Continuations : public ContinuationRequest {
public:
    explicit Continuations(const ContinuationRequest& request) : ContinuationRequest(request) {}

    void begin(int64_t pieces) {
        n_pieces = pieces;
        const size_t lists = size_t(n_rows * omp_get_max_threads());
        sums.reset(new Sum[size_t(n_rows * n_pieces)]);
        best.reset(new Candidate[lists * size_t(k)]);
        sizes.reset(new int64_t[lists]());
    }

    // Reads row r's logits z of `count` ids from `first` on; a thread takes pieces in their order. tops: room for a
    // number for each BLOCK of them.
    static constexpr int64_t BLOCK = 64;
    void take(const float* z, float* tops, int64_t r, int64_t piece, int64_t first, int64_t count) {
        const int64_t n_blocks = (count + BLOCK - 1) / BLOCK;
        for (int64_t b = 0; b < n_blocks; b++) tops[b] = largest(z + b * BLOCK, std::min(BLOCK, count - b * BLOCK));
        const float top = largest(tops, n_blocks);
        sums[size_t(r * n_pieces + piece)] = {top, sum_of_exponentials(z, top, count)};
        const int64_t row = rows[r], list = omp_get_thread_num() * n_rows + r, only = required[row];
        const bool ends = may_end[row / beam];
        Candidate* const mine = best.get() + list * k;
        int64_t size = sizes[size_t(list)];
        float bar = size == k ? float(mine[k - 1].value) : -INFINITY;  // to be exceeded where there are k already
        const auto consider = [&](int64_t j) {
            const int64_t id = first + j;
            if ((size == k && !(z[j] > bar)) || never[id] || (id == eos && !ends)) return;
            size = insert({z[j], row % beam * vocab + id}, mine, size, k);
            if (size == k) bar = float(mine[k - 1].value);
        };
        if (only >= 0) {
            if (only >= first && only < first + count) consider(only - first);
        } else {
            for (int64_t b = 0; b < n_blocks; b++)
                if (size < k || tops[b] > bar)
                    each_above(z, b * BLOCK, std::min(count, (b + 1) * BLOCK), bar, consider);
        }
        sizes[size_t(list)] = size;
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
                for (int64_t t = 0; t < omp_get_max_threads(); t++) {
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
    struct Sum {  // total: of e^(logit - top)
        float top, total;
    };
    int64_t n_pieces = 0;
    std::unique_ptr<Sum[]> sums;        // (row, piece)
    std::unique_ptr<Candidate[]> best;  // (thread, row, k), by logits
    std::unique_ptr<int64_t[]> sizes;   // (thread, row)

    double log_sum(int64_t r) const {  // of row r's exponentials
        const Sum* const pieces = sums.get() + r * n_pieces;
        float top = pieces[0].top;
        for (int64_t p = 1; p < n_pieces; p++) top = std::max(top, pieces[p].top);
        double total = 0;
        for (int64_t p = 0; p < n_pieces; p++) total += pieces[p].total * double(exponential(pieces[p].top - top));
        return top + std::log(total);
    }
};

template <class T>
static void best_continuations(const T* logits, Continuations& wanted, double* values, int64_t* indices) {
    const int64_t vocab = wanted.vocab, n = wanted.n_rows;
    wanted.begin(1);
    parallel([&](Team& team) {
        Scratch scratch;
        float* const z = scratch.take(vocab + vocab / Continuations::BLOCK + 1);
        team.share_last(n, 1, [&](int64_t r) {
            for (int32_t j = 0; j < vocab; j++) z[j] = to_float(logits[r * vocab + j]);
            wanted.take(z, z + vocab, r, 0, 0, vocab);
        });
    });
    wanted.finish(values, indices);
}

// The best continuations by the logits x · Wᵀ: of them, some rows' logits of 512 ids at a time exist, in a thread's
// cache.
//
// product: as one_panel_product, of `some` rows from row i on and panel p; fetch: whether to fetch panel `next` from
// memory. begin(team): what each thread does first.
template <class Begin, class Product>
static void product_continuations(const Weight& weight, int64_t n, int64_t rows_at_a_time, Continuations& wanted,
                                  double* values, int64_t* indices, Begin begin, Product product) {
    constexpr int64_t PANELS = 16;
    const int64_t n_pieces = (n_panels(weight) + PANELS - 1) / PANELS;
    wanted.begin(n_pieces);
    parallel([&](Team& team) {
        Scratch scratch;
        float* const z = scratch.take((rows_at_a_time + 1) * PANELS * PANEL);
        float* const tops = z + rows_at_a_time * PANELS * PANEL;
        [[maybe_unused]] const auto registers = begin(team);
        team.share(n_pieces, 1, [&](int64_t piece) {
            const int64_t first = piece * PANELS, end = std::min(first + PANELS, n_panels(weight));
            const int64_t count = std::min(end * PANEL, weight.d_out) - first * PANEL;
            for (int64_t i = 0; i < n; i += rows_at_a_time) {
                const int64_t some = std::min(rows_at_a_time, n - i);
                for (int64_t p = first; p < end; p++) {
                    // Every block of rows fetches some panels of the piece that this thread will probably take next.
                    const bool fetch = (p - first) * n / PANELS / rows_at_a_time * rows_at_a_time == i;
                    const int64_t next = fetch ? p + team.size * PANELS : n_panels(weight);
                    product(i, some, p, next, z + (p - first) * PANEL, PANELS * PANEL);
                }
                for (int64_t r = 0; r < some; r++)
                    wanted.take(z + r * PANELS * PANEL, tops, i + r, piece, first * PANEL, count);
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
        weight, n, SearchTiles::allowed() ? 32 : 12, wanted, values, indices,
        [&](Team& team) {
            team.split(n, [&](int64_t i) { rows.take(i, x + i * weight.d_in, weight.d_in); });
            return std::make_unique<SearchTiles>();
        },
        [&](int64_t i, int64_t some, int64_t p, int64_t next, float* z, int64_t z_ld) {
            rows.panel_product(i, some, weight, p, next, false, z, z_ld);
        });
}

[[maybe_unused]] static void fp32_best_continuations(const float* x, const Weight& weight, Continuations& wanted,
                                                     double* values, int64_t* indices) {
    product_continuations(
        weight, wanted.n_rows, 12, wanted, values, indices, [](Team&) { return 0; },
        [&](int64_t i, int64_t some, int64_t p, int64_t, float* z, int64_t z_ld) {
            one_panel_product(x + i * weight.d_in, weight, p, z, z_ld, some, false);
        });
}

}  // namespace heed
