// Attention of packed sequences, for training. A thread takes one head of one sequence, whose matrices are small and
// stay in its cache; the backward pass computes the weights again.

#pragma once

#include <type_traits>

#include "attention_in_float.h"
#include "attention_in_pairs.h"

namespace heed {

// softmax(Q Kᵀ / √d_k) V in every head of every sequence (equation 1), weights dropped out at a rate; and its
// gradients, given that of `out`.

template <class T>
static void attend(const T* q, const T* k, const T* v, T* out, const Shape& s) {
    if constexpr (HAS_BF16_DOT && std::is_same_v<T, bf16>) {
        if (s.d_k == s.d_v && s.d_k == 64) return attend_in_pairs<64>(q, k, v, out, s);
        if (s.d_k == s.d_v && s.d_k == 32) return attend_in_pairs<32>(q, k, v, out, s);
    }
    attend_in_float(q, k, v, out, s);
}

template <class T>
static void attend_backward(const T* q, const T* k, const T* v, const T* dout, T* dq, T* dk, T* dv, const Shape& s) {
    if constexpr (HAS_BF16_DOT && std::is_same_v<T, bf16>) {
        if (s.d_k == s.d_v && s.d_k == 64) return attend_backward_in_pairs<64>(q, k, v, dout, dq, dk, dv, s);
        if (s.d_k == s.d_v && s.d_k == 32) return attend_backward_in_pairs<32>(q, k, v, dout, dq, dk, dv, s);
    }
    attend_backward_in_float(q, k, v, dout, dq, dk, dv, s);
}

}  // namespace heed
