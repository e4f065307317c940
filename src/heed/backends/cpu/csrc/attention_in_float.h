// Attention of packed sequences in float, for all types, widths and processors.

#pragma once

#include "attention_heads.h"

namespace heed {

// The rows of one head as float, padded with zeros to whole vectors.
template <class T>
static void read_rows(const T* from, int64_t stride, float* to, int64_t n, int64_t d) {
    const int64_t ld = whole_vectors(d);
    for (int64_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < d; j++) to[i * ld + j] = to_float(from[i * stride + j]);
        for (int64_t j = d; j < ld; j++) to[i * ld + j] = 0;
    }
}

template <class T>
static void write_rows(const float* from, T* to, int64_t stride, int64_t n, int64_t d, float scale) {
    const int64_t ld = whole_vectors(d);
    for (int64_t i = 0; i < n; i++)
        for (int32_t j = 0; j < d; j++) put(from[i * ld + j] * scale, to[i * stride + j]);
}

// to (d, n) = from (n, d) transposed, padded with zeros to whole vectors.
static inline void transpose(const float* from, int64_t from_ld, float* to, int64_t n, int64_t d) {
    const int64_t ld = whole_vectors(n);
    for (int64_t j = 0; j < d; j += LANES)
        for (int64_t i = 0; i < n; i += LANES) {
            Floats x[LANES];
            for (int64_t r = 0; r < LANES; r++) x[r] = i + r < n ? load(from + (i + r) * from_ld + j) : Floats{};
            transpose_square(x);
            for (int64_t c = 0; c < LANES && j + c < d; c++) store(x[c], to + (j + c) * ld + i);
        }
}

template <class T>
static void attend_in_float(const T* q, const T* k, const T* v, T* out, const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(s.d_k));
    const int64_t kd = whole_vectors(s.d_k), vd = whole_vectors(s.d_v);
    const Dropout dropout(s.seed, s.rate);
    for_heads(s, [=](const Span& span, Scratch& scratch) {
        const auto [head, q0, nq, k0, nk] = span;
        const int64_t ld = whole_vectors(nk);
        float* Q = scratch.take(nq * (kd + ld + vd) + nk * (kd + vd) + s.d_k * ld);
        float *K = Q + nq * kd, *KT = K + nk * kd, *V = KT + s.d_k * ld, *P = V + nk * vd, *O = P + nq * ld;
        read_rows(q + q0 * s.q_stride + head * s.d_k, s.q_stride, Q, nq, s.d_k);
        read_rows(k + k0 * s.k_stride + head * s.d_k, s.k_stride, K, nk, s.d_k);
        read_rows(v + k0 * s.v_stride + head * s.d_v, s.v_stride, V, nk, s.d_v);
        transpose(K, kd, KT, nk, s.d_k);
        product(Q, kd, 1, KT, ld, P, ld, nq, ld, s.d_k);
        for (int64_t i = 0; i < nq; i++) {
            float* p = P + i * ld;
            const int64_t visible = s.causal ? i + 1 : nk;
            softmax(p, visible, ld, scale);
            if (s.rate > 0) {
                const uint32_t first = first_element(s, dropout, q0 + i, head);
                for (int64_t j = 0; j < visible; j += LANES) store(load(p + j) * dropout.factors(first, j), p + j);
            }
        }
        product(P, ld, 1, V, vd, O, vd, nq, vd, nk);
        write_rows(O, out + q0 * s.n_heads * s.d_v + head * s.d_v, s.n_heads * s.d_v, nq, s.d_v, 1.0f);
    });
}

template <class T>
static void attend_backward_in_float(const T* q, const T* k, const T* v, const T* dout, T* dq, T* dk, T* dv,
                                     const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(s.d_k));
    const int64_t kd = whole_vectors(s.d_k), vd = whole_vectors(s.d_v), out_stride = s.n_heads * s.d_v;
    const Dropout dropout(s.seed, s.rate);
    for_heads(s, [=](const Span& span, Scratch& scratch) {
        const auto [head, q0, nq, k0, nk] = span;
        const int64_t ld = whole_vectors(nk), widest = std::max(kd, vd);
        float* Q =
            scratch.take(nq * (kd + vd + 2 * ld) + nk * (kd + vd) + (s.d_k + s.d_v) * ld + std::max(nq, nk) * widest);
        float *K = Q + nq * kd, *KT = K + nk * kd, *V = KT + s.d_k * ld, *VT = V + nk * vd, *dO = VT + s.d_v * ld;
        float *P = dO + nq * vd, *dP = P + nq * ld, *result = dP + nq * ld;
        read_rows(q + q0 * s.q_stride + head * s.d_k, s.q_stride, Q, nq, s.d_k);
        read_rows(k + k0 * s.k_stride + head * s.d_k, s.k_stride, K, nk, s.d_k);
        read_rows(v + k0 * s.v_stride + head * s.d_v, s.v_stride, V, nk, s.d_v);
        read_rows(dout + q0 * out_stride + head * s.d_v, out_stride, dO, nq, s.d_v);
        transpose(K, kd, KT, nk, s.d_k);
        transpose(V, vd, VT, nk, s.d_v);
        product(Q, kd, 1, KT, ld, P, ld, nq, ld, s.d_k);
        product(dO, vd, 1, VT, ld, dP, ld, nq, ld, s.d_v);
        for (int64_t i = 0; i < nq; i++) {
            float *p = P + i * ld, *dp = dP + i * ld;
            softmax(p, s.causal ? i + 1 : nk, ld, scale);
            const uint32_t first = first_element(s, dropout, q0 + i, head);
            const auto dropped = [&](Floats x, int64_t j) { return s.rate > 0 ? x * dropout.factors(first, j) : x; };
            Floats means = {};  // of dP under P
            for (int64_t j = 0; j < ld; j += LANES) {
                const Floats dpj = dropped(load(dp + j), j);
                store(dpj, dp + j);
                means += load(p + j) * dpj;
            }
            const float mean = total(means);
            for (int64_t j = 0; j < ld; j += LANES) {
                const Floats pj = load(p + j);
                store(pj * (load(dp + j) - mean), dp + j);
                store(dropped(pj, j), p + j);
            }
        }
        product(dP, ld, 1, K, kd, result, kd, nq, kd, nk);
        write_rows(result, dq + q0 * s.q_stride + head * s.d_k, s.q_stride, nq, s.d_k, scale);
        product(dP, 1, ld, Q, kd, result, kd, nk, kd, nq);
        write_rows(result, dk + k0 * s.k_stride + head * s.d_k, s.k_stride, nk, s.d_k, scale);
        product(P, 1, ld, dO, vd, result, vd, nk, vd, nq);
        write_rows(result, dv + k0 * s.v_stride + head * s.d_v, s.v_stride, nk, s.d_v, 1.0f);
    });
}

}  // namespace heed
