// A beam search's account of its hypotheses, extended by one id: what backends/beam_account.py does in numpy.

#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "exports.h"

namespace heed {

// The account of one sentence.
struct SentenceAccount {
    const BeamAccount& all;
    const EndingRules& rules;
    const int64_t s, beam = all.beam, n_best = all.n_best;
    int64_t& length = all.lengths[s];
    double* const log_probs = all.log_probs + s * beam;
    int64_t* const last = all.last + s * beam;
    int32_t* const history = all.history + s * beam * all.width;
    double* const best_scores = all.best_scores + s * n_best;

    // Puts a hypothesis of the first n ids of this row among the best; of equal scores the earlier stays first.
    void collect(double log_prob, int64_t row, int64_t n, bool ended) {
        const double score = log_prob / rules.penalties[length];
        if (!(score > best_scores[n_best - 1])) return;
        int64_t rank = n_best - 1;
        for (; rank > 0 && score > best_scores[rank - 1]; rank--) copy_best(rank - 1, rank);
        best_scores[rank] = score;
        all.best_log_probs[s * n_best + rank] = log_prob;
        all.best_lengths[s * n_best + rank] = ended ? n : -n;
        std::copy_n(history + row * all.width, n, best_ids(rank));
    }

    // Returns whether the search of the sentence is over. old: room for the history.
    bool extend(const double* values, const int64_t* parents, const int64_t* ids, int64_t k, int64_t* rows,
                std::vector<int32_t>& old) {
        length++;
        for (int64_t c = 0; c < beam; c++)
            if (ids[c] == rules.eos && values[c] > -INFINITY) {
                collect(values[c], parents[c], length - 1, true);
                all.n_ended[s]++;
            }
        int64_t n = 0;
        for (int64_t c = 0; c < k && n < beam; c++)
            if (ids[c] != rules.eos) take(n++, values[c], parents[c], ids[c], rows);
        for (int64_t c = 0; n < beam; c++)  // no others exist
            if (ids[c] == rules.eos) take(n++, -INFINITY, parents[c], ids[c], rows);
        reorder(rows, old);
        const bool at_limit = all.limits[s] <= length;
        if (at_limit && best_scores[0] == -INFINITY)
            for (int64_t b = 0; b < beam; b++)
                if (log_probs[b] > -INFINITY) collect(log_probs[b], b, length, false);
        // Log-probabilities only fall, so this is the best score that any unfinished hypothesis can reach.
        const double bound = log_probs[0] / rules.penalties[all.limits[s]];
        return at_limit || bound <= best_scores[n_best - 1] || (rules.early_stopping && all.n_ended[s] >= beam);
    }

private:
    int32_t* best_ids(int64_t rank) { return all.best_ids + (s * n_best + rank) * all.width; }

    void copy_best(int64_t from, int64_t to) {
        best_scores[to] = best_scores[from];
        all.best_log_probs[s * n_best + to] = all.best_log_probs[s * n_best + from];
        all.best_lengths[s * n_best + to] = all.best_lengths[s * n_best + from];
        std::copy_n(best_ids(from), length, best_ids(to));
    }

    void take(int64_t b, double log_prob, int64_t parent, int64_t id, int64_t* rows) {
        log_probs[b] = log_prob;
        last[b] = id;
        rows[b] = parent;
    }

    // Row b's history becomes that of rows[b], with its last id behind.
    void reorder(const int64_t* rows, std::vector<int32_t>& old) {
        const int64_t n = length - 1;
        old.resize(size_t(beam * n));
        for (int64_t b = 0; b < beam; b++) std::copy_n(history + b * all.width, n, old.data() + b * n);
        for (int64_t b = 0; b < beam; b++) {
            std::copy_n(old.data() + rows[b] * n, n, history + b * all.width);
            history[b * all.width + n] = int32_t(last[b]);
        }
    }
};

// Slot slots[b] gets the first n ancestors that slot parents[b] had: the `beam` slots of one sentence, and no other's.
// old: room for them.
static inline void reorder_ancestors(int32_t* ancestors, const int64_t* slots, const int64_t* parents, int64_t beam,
                                     int64_t capacity, int64_t n, std::vector<int32_t>& old) {
    old.resize(size_t(beam * n));
    for (int64_t b = 0; b < beam; b++) std::copy_n(ancestors + parents[b] * capacity, n, old.data() + b * n);
    for (int64_t b = 0; b < beam; b++) std::copy_n(old.data() + b * n, n, ancestors + slots[b] * capacity);
}

}  // namespace heed
