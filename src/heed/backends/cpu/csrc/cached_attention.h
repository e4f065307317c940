// Attention of a search: one query a row, to the keys and values in its cache, or to those of its source.

#pragma once

#include <type_traits>

#include "exports.h"
#include "row_math.h"
#include "threads.h"

namespace heed {

// Calls run(std::integral_constant<int, D>()) where D is the width of keys and values if it is one that is compiled
// separately, or else 0.
template <class Run>
static inline void with_width(int64_t d_k, int64_t d_v, Run run) {
    const int64_t d = d_k == d_v ? d_k : 0;
    if (d == 64) return run(std::integral_constant<int, 64>());
    if (d == 32) return run(std::integral_constant<int, 32>());
    run(std::integral_constant<int, 0>());
}

static inline void round_to_bf16(const float* x, bf16* to, int64_t n) {  // n a multiple of 16
    for (int64_t j = 0; j < n; j += LANES) store(rounded_to_bf16(load(x + j)), to + j);
}

// p[head, t] = query · keys[t] for four heads, whose sums are reduced together: one by one that takes longer than the
// products.
template <int D>
static inline void four_dots(const bf16* query, const bf16* const* keys, int64_t from, float* p, int64_t p_ld,
                             int64_t length) {
    const auto dot = [&](const bf16* q, const bf16* k) {
        Floats sum = {};
        for (int j = 0; j < D; j += 32) sum = add_pair_products(sum, load_as<Bits>(q + j), load_as<Bits>(k + j));
        return sum;
    };
    const auto two = [](Floats a, Floats b) { return bit_cast<Longs>(interleave_low(a, b) + interleave_high(a, b)); };
    for (int64_t t = 0; t < length; t++) {
        const bf16* const k = keys[t] + from;
        const Longs a = two(dot(query, k), dot(query + D, k + D));
        const Longs b = two(dot(query + 2 * D, k + 2 * D), dot(query + 3 * D, k + 3 * D));
        Floats all = bit_cast<Floats>(interleave_low(a, b)) + bit_cast<Floats>(interleave_high(a, b));
        all += shuffle(all, all, [](int i) { return i ^ 8; });
        all += shuffle(all, all, [](int i) { return i ^ 4; });
        for (int v = 0; v < 4; v++) p[v * p_ld + t] = all[v];
    }
}

// out = Σ weights[head, t] · values[t] for as many heads as C counts 32 columns of, two positions at a time; `values`
// holds the last position once more behind the last, with the weight 0.
template <int D, size_t... C>
static inline void mixed_values(std::index_sequence<C...>, const bf16* const* values, int64_t from, const bf16* weights,
                                int64_t weights_ld, float* out, int64_t length) {
    Floats low[sizeof...(C)], high[sizeof...(C)];
    ((low[C] = Floats{}, high[C] = Floats{}), ...);
    for (int64_t t = 0; t < length; t += 2) {
        const bf16 *x = values[t] + from, *y = values[t + 1] + from;
        const auto add = [&](size_t c, Floats& l, Floats& h) {
            const Bits weight = broadcast_pair(weights + int64_t(c * 32 / D) * weights_ld + t);
            const Shorts a = load_as<Shorts>(x + c * 32), b = load_as<Shorts>(y + c * 32);
            l = add_pair_products(l, bit_cast<Bits>(interleave_low(a, b)), weight);
            h = add_pair_products(h, bit_cast<Bits>(interleave_high(a, b)), weight);
        };
        (add(C, low[C], high[C]), ...);
    }
    // low has columns 0 to 3 of every eight, high 4 to 7.
    const auto first = [](int i) { return i / 8 * 4 + i % 4 + i / 4 % 2 * int(LANES); };
    const auto second = [](int i) { return 8 + i / 8 * 4 + i % 4 + i / 4 % 2 * int(LANES); };
    ((store(shuffle(low[C], high[C], first), out + C * 32),
      store(shuffle(low[C], high[C], second), out + C * 32 + LANES)),
     ...);
}

// softmax(q · keys / √d_k) · values in every head; at(t) is the address of all heads' keys | values of position t,
// which are read once, from first to last. D: d_k and d_v where they are equal and known beforehand, else 0.
template <int D, class Q, class T, class At>
static inline void attend_row(const Q* q, At at, Q* out, int64_t length, const Heads& heads, Scratch& scratch) {
    const int32_t d_k = D ? D : int32_t(heads.d_k), d_v = D ? D : int32_t(heads.d_v);
    const int64_t ld = whole_vectors(length + 1);  // of the weights
    const int64_t n_addresses = whole_vectors(2 * (length + 1));
    float* const memory = scratch.take(n_addresses + heads.kv() + 2 * heads.n * ld);
    float *query = memory + n_addresses, *sum = query + heads.keys(), *p = sum + heads.values();
    const float scale = 1.0f / std::sqrt(float(d_k));
    for (int32_t j = 0; j < heads.keys(); j++) query[j] = to_float(q[j]);
    if constexpr (HAS_BF16_DOT && D > 0 && std::is_same_v<T, bf16>) {
        if (heads.n % 4 == 0) {
            const bf16** const addresses = reinterpret_cast<const bf16**>(memory);
            for (int64_t t = 0; t < length; t++) {
                addresses[t] = at(t);
                for (int64_t j = 0; j < heads.kv(); j += 32) __builtin_prefetch(addresses[t] + j);
            }
            addresses[length] = addresses[length - 1];
            bf16* const rounded = reinterpret_cast<bf16*>(sum);
            bf16* const weights = reinterpret_cast<bf16*>(p + heads.n * ld);
            round_to_bf16(query, rounded, heads.keys());
            for (int64_t h = 0; h < heads.n; h += 4)
                four_dots<D>(rounded + h * D, addresses, h * D, p + h * ld, ld, length);
            float* const inverse = query;
            for (int64_t h = 0; h < heads.n; h++) inverse[h] = softmax_numerators(p + h * ld, length, ld, scale);
            round_to_bf16(p, weights, heads.n * ld);
            for (int64_t h = 0; h < heads.n; h += 4)
                mixed_values<D>(std::make_index_sequence<4 * D / 32>(), addresses, heads.keys() + h * D,
                                weights + h * ld, ld, sum + h * D, length);
            for (int64_t h = 0; h < heads.n; h++)
                for (int32_t j = 0; j < D; j++) put(sum[h * D + j] * inverse[h], out[h * D + j]);
            return;
        }
    }
    for (int64_t t = 0; t < length; t++) {
        const T* const keys = at(t);
        for (int64_t h = 0; h < heads.n; h++) {
            float dot = 0;
            for (int32_t j = 0; j < d_k; j++) dot += query[h * d_k + j] * to_float(keys[h * d_k + j]);
            p[h * ld + t] = dot;
        }
    }
    for (int64_t h = 0; h < heads.n; h++) softmax(p + h * ld, length, ld, scale);
    for (int32_t j = 0; j < heads.values(); j++) sum[j] = 0;
    for (int64_t t = 0; t < length; t++) {
        const T* const values = at(t) + heads.keys();
        for (int64_t h = 0; h < heads.n; h++) {
            const float weight = p[h * ld + t];
            for (int32_t j = 0; j < d_v; j++) sum[h * d_v + j] += weight * to_float(values[h * d_v + j]);
        }
    }
    for (int32_t j = 0; j < heads.values(); j++) put(sum[j], out[j]);
}

// Self-attention of the r-th of the listed rows. qkv: all heads' Q | K | V. The new keys and values enter the cache.
template <int D, class Q, class T>
[[gnu::noinline]] static void attend_to_past(const Q* qkv, T* cache, Q* out, int64_t r, const Beams& beams,
                                             Scratch& scratch) {
    const Heads& heads = beams.heads;
    const int64_t row = beams.rows[r], length = beams.lengths[row], kv = heads.kv();
    int32_t* const ancestors = beams.ancestors + beams.slots[row] * beams.capacity;
    const auto at = [&](int64_t t) { return cache + (ancestors[t] * beams.capacity + t) * kv; };
    ancestors[length] = int32_t(beams.slots[row]);
    T* const entry = at(length);
    for (int32_t j = 0; j < kv; j++) put(to_float(qkv[heads.keys() + j]), entry[j]);
    attend_row<D, Q, T>(qkv, at, out, length + 1, heads, scratch);
}

// Attention of the r-th of the listed rows to its sentence's source.
template <int D, class Q, class T>
[[gnu::noinline]] static void attend_to_source(const Q* q, const T* const* memories, Q* out, int64_t r,
                                               const Beams& beams, Scratch& scratch) {
    const int64_t sentence = beams.rows[r] / beams.beam, kv = beams.heads.kv();
    const T* const memory = memories[sentence];
    const auto at = [&](int64_t t) { return memory + t * kv; };
    attend_row<D, Q, T>(q, at, out, beams.src_lengths[sentence], beams.heads, scratch);
}

}  // namespace heed
