// What the sources of exported functions share besides kernels.h.

#pragma once

#include <algorithm>
#include <new>

#include "kernels.h"

namespace heed {

// Which continuations are wanted. rows: those that have logits, of all n_sentences · beam. By row of all: log_probs,
// its log-probability so far, and `allowed`, the n_allowed ids that it may take, ascending, or null for any. By id:
// `never`, whether it is excluded. By sentence: whether it may_end, by eos.
struct ContinuationRequest {
    const int64_t* rows;
    const double* log_probs;
    const int32_t* const* allowed;
    const int64_t* n_allowed;
    const uint8_t *never, *may_end;
    int64_t n_rows, n_sentences, beam, vocab, eos, k;
};

// Of each sentence the k best continuations by the logits x · Wᵀ, which are never all kept: see continuations.h.
void product_continuations(const float* x, const Weight& weight, const ContinuationRequest& request, double* values,
                           int64_t* indices);

// A product of so few is finished by a thread before it could wake another.
constexpr int64_t FEW_MULTIPLICATIONS = 1 << 19;

// Of n rows with the largest of a layer's weights.
template <class T>
static inline int64_t multiplications(const Step<T>& step, int64_t n) {
    return n * step.d_model * std::max(step.d_ff, step.layers[0].qkv.d_out);
}

struct NotHere {};

static inline void check(Status status) {
    if (status == NO_MEMORY) throw std::bad_alloc();
    if (status == NOT_HERE) throw NotHere();
}

// Runs an exported function. No exception may leave it: C has none, so that it would end the process.
template <class Run>
static Status status_of(Run run) noexcept {
    try {
        run();
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    } catch (const NotHere&) {
        return NOT_HERE;
    }
    return DONE;
}

}  // namespace heed
