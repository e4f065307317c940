// What both implementations of attention of packed sequences share: heads of sequences, and squares transposed.

#pragma once

#include "dropout.h"
#include "products.h"
#include "row_math.h"

namespace heed {

struct Span {  // one head of one sequence: its first query and key, and how many there are
    int64_t head, q0, nq, k0, nk;
};

static inline Span span_of(const Shape& s, int64_t pair) {
    const int64_t sequence = pair / s.n_heads, q0 = s.q_offsets[sequence], k0 = s.k_offsets[sequence];
    return {pair % s.n_heads, q0, s.q_offsets[sequence + 1] - q0, k0, s.k_offsets[sequence + 1] - k0};
}

// The index from which the weights of this query count for dropout. Rows of weights have as many columns as their
// sequence has keys, so indices are drawn at random to keep their elements apart.
static inline uint32_t first_element(const Shape& s, const Dropout& dropout, int64_t query, int64_t head) {
    return random_bits(uint32_t(query * s.n_heads + head), dropout.key1, dropout.key0);
}

// run(span, scratch) for every head of every sequence, in all threads.
template <class Run>
static void for_heads(const Shape& s, Run run) {
    parallel([=](ThreadTeam& team) {
        Scratch scratch;
        const int64_t n = s.n_sentences * s.n_heads;
        const int64_t some = std::clamp<int64_t>(n / (4 * team.size), 1, 16);  // few long sentences are shared too
        team.share_last(n, some, [&](int64_t pair) { run(span_of(s, pair), scratch); });
    });
}

// Of LANES x LANES numbers, in every square of 2 STEP, the upper right quarter and the lower left one change places.
// Done with steps of 1, 2 and so on, this transposes them.
template <int STEP>
static inline void swap_quarters(Floats* x) {
    for (int i = 0; i < LANES; i++)
        if (!(i & STEP)) {
            const Floats a = x[i], b = x[i + STEP];
            x[i] = shuffle(a, b, [](int lane) { return lane & STEP ? int(LANES) + lane - STEP : lane; });
            x[i + STEP] = shuffle(a, b, [](int lane) { return lane & STEP ? int(LANES) + lane : lane + STEP; });
        }
}
template <int STEP = 1>
static inline void transpose_square(Floats* x) {
    swap_quarters<STEP>(x);
    if constexpr (2 * STEP < LANES) transpose_square<2 * STEP>(x);
}

}  // namespace heed
