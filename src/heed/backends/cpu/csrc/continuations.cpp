// The best continuations of a search's hypotheses, from logits or from the product that would give them.

#include "continuations.h"

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
#define HEED_DEFINE(T, NAME)                                                                                   \
 heed::Status best_continuations_##NAME(const T* logits, const int64_t* rows, const double* log_probs,         \
                                        const int32_t* const* allowed, const int64_t* n_allowed,               \
                                        const uint8_t* never, const uint8_t* may_end, double* values,          \
                                        int64_t* indices, int64_t n_rows, int64_t n_sentences, int64_t beam,   \
                                        int64_t vocab, int64_t eos, int64_t k) {                 \
  return heed::status_of([&] {                                                                                 \
Continuations wanted({rows, log_probs, allowed, n_allowed, never, may_end,                                     \
                      n_rows, n_sentences, beam, vocab, eos, k});                                              \
heed::best_continuations(logits, wanted, values, indices);                                                        \
  });                                                                                                          \
 }
HEED_DEFINE(float, float)
HEED_DEFINE(heed::bf16, bf16)
#undef HEED_DEFINE
}
