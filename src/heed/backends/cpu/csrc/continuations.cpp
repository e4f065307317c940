// The best continuations of a search's hypotheses, from logits or from the product that would give them.

#include "continuations.h"

#include "draw.h"

using heed::Continuations;

namespace heed {

void product_continuations(const float* x, const Weight& weight, const ContinuationRequest& request, double* values,
                           int64_t* indices) {
    Continuations wanted(request);
    if (weight.number_bytes == 4) return fp32_best_continuations(x, weight, wanted, values, indices);
    with_narrow_products(weight, [&](auto products) {
        using Memory = typename decltype(products)::Type::Memory;
        narrow_best_continuations<Memory>(x, weight, wanted, values, indices);
    });
}

}  // namespace heed

extern "C" {
heed::Status best_continuations(const float* logits, const int64_t* rows, const double* log_probs,
                                const int32_t* const* allowed, const int64_t* n_allowed, const uint8_t* never,
                                const uint8_t* may_end, double* values, int64_t* indices, int64_t n_rows,
                                int64_t n_sentences, int64_t beam, int64_t vocab, int64_t eos, int64_t k) {
    return heed::status_of([&] {
        Continuations wanted(
            {rows, log_probs, allowed, n_allowed, never, may_end, n_rows, n_sentences, beam, vocab, eos, k});
        heed::best_continuations(logits, wanted, values, indices);
    });
}
heed::Status draw(const float* logits, const double* numbers, const int32_t* const* allowed, const int64_t* n_allowed,
                  const uint8_t* never, const uint8_t* may_end, int64_t* ids, double* log_probs, int64_t n_rows,
                  int64_t beam, int64_t vocab, int64_t eos, int64_t top_k, double top_p, double temperature) {
    return heed::status_of([&] {
        heed::parallel_rows(n_rows, false, [&](heed::ThreadTeam& team) {
            heed::Distribution distribution(vocab, eos, never, top_k, top_p, temperature);
            team.share_last(n_rows, 1, [&](int64_t r) {
                distribution.read(logits + r * vocab, allowed[r], n_allowed[r], may_end[r / beam]);
                ids[r] = distribution.draw(numbers[r], log_probs + r);
            });
        });
    });
}
heed::Status log_probs_of(const float* logits, const int64_t* ids, double* y, int64_t n_rows, int64_t n_ids,
                          int64_t vocab) {
    return heed::status_of([&] {
        heed::parallel_rows(n_rows, false, [&](heed::ThreadTeam& team) {
            team.split_last(n_rows, [&](int64_t r) {
                const float* const z = logits + r * vocab;
                const double log_total = heed::log_sum(z, vocab);
                for (int64_t i = r * n_ids; i < (r + 1) * n_ids; i++)
                    y[i] = ids[i] < 0 ? -INFINITY : double(z[ids[i]]) - log_total;
            });
        });
    });
}
heed::Status mean_logits(const float* const* logits, float* y, int64_t n_models, int64_t n_rows, int64_t vocab) {
    return heed::status_of([&] {
        heed::parallel_rows(n_rows, false, [&](heed::ThreadTeam& team) {
            team.split_last(n_rows, [&](int64_t r) {
                float* const sum = y + r * vocab;
                std::fill_n(sum, vocab, 0.0f);
                for (int64_t m = 0; m < n_models; m++)
                    heed::add_probabilities(logits[m] + r * vocab, vocab, sum);
                for (int64_t j = 0; j < vocab; j++) sum[j] = std::log(sum[j]);
            });
        });
    });
}
}
