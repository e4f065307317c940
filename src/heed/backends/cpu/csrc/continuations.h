// The k best continuations of each sentence, best first; of equals the one of the earlier row, then of the smaller id.
// Logits are taken in piece by piece of the vocabulary, by any thread, and need not exist together.

#pragma once

#include "products.h"

struct Candidate {
    double value;
    int64_t index;
    bool before(const Candidate& other) const {
        return value > other.value || (value == other.value && index < other.index);
    }
};

// Puts a candidate into its place among the `size` best so far, of `most`. Returns how many there are now.
static inline int64_t insert(Candidate* best, int64_t size, int64_t most, Candidate candidate) {
    int64_t at = size;
    while (at > 0 && candidate.before(best[at - 1])) at--;
    if (at == most) return size;
    const int64_t last = std::min(size, most - 1);
    for (int64_t i = last; i > at; i--) best[i] = best[i - 1];
    best[at] = candidate;
    return last + 1;
}

// run(j) for each j of [from, to) with x[j] > bar, as bar was at the beginning of its vector.
template <class Do>
static inline void each_above(const float* x, int64_t from, int64_t to, const float& bar, Do run) {
    int64_t j = from;
#if defined(__AVX512F__)
    for (; j + W <= to; j += W) {
        uint32_t above = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + j), _mm512_set1_ps(bar), _CMP_GT_OQ);
        for (; above; above &= above - 1) run(j + __builtin_ctz(above));
    }
#endif
    for (; j < to; j++)
        if (x[j] > bar) run(j);
}

struct Continuations {
    // The rows whose logits come, of all n_sentences · beam. Of each of all, its log-probability so far; its only choice,
    // or -1. By id, whether it is never chosen. By sentence, whether eos may be.
    const int64_t* rows;
    const double* log_probs;
    const int64_t* required;
    const uint8_t *never, *may_end;
    int64_t n_rows, n_sentences, beam, vocab, eos, k;

    struct Sum {  // of e^(logit - top)
        float top, total;
    };
    int64_t n_pieces = 0;
    std::unique_ptr<Sum[]> sums;         // (row, piece)
    std::unique_ptr<Candidate[]> best;   // (thread, row, k), by logits
    std::unique_ptr<int64_t[]> sizes;    // (thread, row)

    void begin(int64_t pieces) {
        n_pieces = pieces;
        const size_t lists = size_t(n_rows * omp_get_max_threads());
        sums.reset(new Sum[size_t(n_rows * n_pieces)]);
        best.reset(new Candidate[lists * size_t(k)]);
        sizes.reset(new int64_t[lists]());
    }

    // The logits z of `count` ids from `first` on; a thread takes pieces in their order. tops: room for each BLOCK.
    static constexpr int64_t BLOCK = 64;
    void take(int64_t r, int64_t piece, const float* z, int64_t first, int64_t count, float* tops) {
        const int64_t n_blocks = (count + BLOCK - 1) / BLOCK;
        for (int64_t b = 0; b < n_blocks; b++) tops[b] = largest(z + b * BLOCK, std::min(BLOCK, count - b * BLOCK));
        const float top = largest(tops, n_blocks);
        float total = 0;
        for (int32_t j = 0; j < count; j++) total += exponential(z[j] - top);
        sums[r * n_pieces + piece] = {top, total};
        const int64_t row = rows[r], list = omp_get_thread_num() * n_rows + r, only = required[row];
        const bool ends = may_end[row / beam];
        Candidate* const mine = best.get() + list * k;
        int64_t size = sizes[list];
        float bar = size == k ? float(mine[k - 1].value) : -INFINITY;  // to be cleared where there are k already
        const auto consider = [&](int64_t j) {
            const int64_t id = first + j;
            if ((size == k && !(z[j] > bar)) || never[id] || (id == eos && !ends)) return;
            size = insert(mine, size, k, {z[j], row % beam * vocab + id});
            if (size == k) bar = float(mine[k - 1].value);
        };
        if (only >= 0) {
            if (only >= first && only < first + count) consider(only - first);
        } else {
            for (int64_t b = 0; b < n_blocks; b++)
                if (size < k || tops[b] > bar) each_above(z, b * BLOCK, std::min(count, (b + 1) * BLOCK), bar, consider);
        }
        sizes[list] = size;
    }

    // index: row in its sentence · vocab + id; where fewer than k exist, value is -infinity. Where a row's logits have no
    // finite sum, all values of its sentence are NaN.
    void finish(double* values, int64_t* indices) const {
        std::unique_ptr<Candidate[]> chosen(new Candidate[size_t(k)]);
        int64_t r = 0;
        for (int64_t s = 0; s < n_sentences; s++) {
            int64_t size = 0;
            bool finite = true;
            for (; r < n_rows && rows[r] / beam == s; r++) {
                const Sum* const mine = sums.get() + r * n_pieces;
                float top = mine[0].top;
                for (int64_t p = 1; p < n_pieces; p++) top = std::max(top, mine[p].top);
                double total = 0;
                for (int64_t p = 0; p < n_pieces; p++) total += mine[p].total * double(exponential(mine[p].top - top));
                const double log_total = top + std::log(total);
                finite &= std::isfinite(log_total);
                for (int64_t t = 0; t < omp_get_max_threads(); t++) {
                    const int64_t list = t * n_rows + r;
                    for (int64_t c = 0; c < sizes[list]; c++) {
                        const Candidate candidate = best[list * k + c];
                        size = insert(chosen.get(), size, k,
                                      {log_probs[rows[r]] + (candidate.value - log_total), candidate.index});
                    }
                }
            }
            for (int64_t c = 0; c < k; c++) {
                values[s * k + c] = !finite ? NAN : c < size ? chosen[c].value : -INFINITY;
                indices[s * k + c] = c < size ? chosen[c].index : 0;
            }
        }
    }
};

template <class T>
static void best_continuations(const T* logits, Continuations& wanted, double* values, int64_t* indices) {
    const int64_t vocab = wanted.vocab, n = wanted.n_rows;
    wanted.begin(1);
#pragma omp parallel
    {
        Scratch scratch;
        float* const z = scratch.take(vocab + vocab / Continuations::BLOCK + 1);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++) {
            for (int32_t j = 0; j < vocab; j++) z[j] = to_float(logits[i * vocab + j]);
            wanted.take(i, 0, z, 0, vocab, z + vocab);
        }
    }
    wanted.finish(values, indices);
}

#if defined(HEED_INT8)
// The best continuations by the logits x · Wᵀ: some rows' logits of 512 ids at a time exist, in a thread's cache.
template <class T>
static void int8_best_continuations(const T* x, const Weight& weight, Continuations& wanted, double* values,
                                    int64_t* indices) {
    constexpr int64_t ROWS = 12, PANELS = 16;
    const int64_t n = wanted.n_rows, n_pieces = (weight.n_panels() + PANELS - 1) / PANELS;
    std::unique_ptr<uint8_t[]> numbers(new uint8_t[size_t(n * in_fours(weight.d_in))]);
    std::unique_ptr<float[]> steps(new float[size_t(n)]);
    const Quantized rows{numbers.get(), steps.get()};
    wanted.begin(n_pieces);
#pragma omp parallel
    {
        Scratch scratch;
        float *const z = scratch.take((ROWS + 1) * PANELS * PANEL), *const tops = z + ROWS * PANELS * PANEL;
        const int64_t ahead = omp_get_num_threads() * PANELS;
#pragma omp for
        for (int64_t i = 0; i < n; i++) rows.take(i, x + i * weight.d_in, weight.d_in);
#pragma omp for schedule(dynamic, 1)
        for (int64_t piece = 0; piece < n_pieces; piece++) {
            const int64_t first = piece * PANELS, end = std::min(first + PANELS, weight.n_panels());
            const int64_t count = std::min(end * PANEL, weight.d_out) - first * PANEL;
            for (int64_t i = 0; i < n; i += ROWS) {
                const int64_t some = std::min(ROWS, n - i);
                for (int64_t p = first; p < end; p++) {
                    // Every block of rows fetches some panels of the piece that this thread will probably take next.
                    const bool fetch = (p - first) * n / PANELS / ROWS * ROWS == i;
                    int8_panel(rows.numbers + i * in_fours(weight.d_in), rows.steps + i,
                               int8_panel_of(weight, p, fetch ? p + ahead : weight.n_panels(), false), z + (p - first) * PANEL, some,
                               PANELS * PANEL);
                }
                for (int64_t r = 0; r < some; r++) wanted.take(i + r, piece, z + r * PANELS * PANEL, first * PANEL, count, tops);
            }
        }
    }
    wanted.finish(values, indices);
}
#else
template <class T>
static void int8_best_continuations(const T*, const Weight&, Continuations&, double*, int64_t*) {}
#endif
