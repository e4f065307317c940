// Attention of one query a row to keys and values at places of their own.

#pragma once

#include "products.h"

#include <type_traits>

struct Heads {
    int64_t n, d_k, d_v;
    int64_t keys() const { return n * d_k; }
    int64_t values() const { return n * d_v; }
    int64_t kv() const { return keys() + values(); }
};

#ifdef HEED_HAS_BF16_PAIRS
constexpr bool HAS_BF16_PAIRS = true;

static inline void round_to_bf16(const float* x, bf16* to, int64_t n) {  // n a multiple of 16
    for (int64_t j = 0; j < n; j += W) {
        const __m256bh some = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + j));
        memcpy(to + j, &some, sizeof(some));
    }
}

// p[head, t] = query · keys[t] for four heads, whose sums are added up together: one by one that takes longer than the
// products.
template <int D>
static inline void dots_of_four(const bf16* query, const bf16* const* keys, int64_t from, int64_t length, float* p,
                                int64_t ld) {
    const auto dot = [&](const bf16* q, const bf16* k) {
        __m512 sum = _mm512_setzero_ps();
        for (int j = 0; j < D; j += 32) sum = _mm512_dpbf16_ps(sum, pairs(loaded(q + j)), pairs(loaded(k + j)));
        return sum;
    };
    const auto two = [](__m512 a, __m512 b) {
        return _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    };
    for (int64_t t = 0; t < length; t++) {
        const bf16* const k = keys[t] + from;
        const __m512d a = two(dot(query, k), dot(query + D, k + D));
        const __m512d b = two(dot(query + 2 * D, k + 2 * D), dot(query + 3 * D, k + 3 * D));
        const __m512 all = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)) + _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        const __m256 half = _mm512_castps512_ps256(all) + _mm512_extractf32x8_ps(all, 1);
        const __m128 four = _mm256_castps256_ps128(half) + _mm256_extractf128_ps(half, 1);
        for (int v = 0; v < 4; v++) p[v * ld + t] = four[v];
    }
}

// out = Σ weight[head, t] · values[t] for the heads that C counts 32 columns of, two positions at a time; the place
// behind the last one holds the last again, with the weight 0.
template <int D, size_t... C>
static inline void mix(std::index_sequence<C...>, const bf16* const* values, int64_t from, int64_t length,
                       const bf16* weights, int64_t ld, float* out) {
    __m512 low[sizeof...(C)], high[sizeof...(C)];
    ((low[C] = _mm512_setzero_ps(), high[C] = _mm512_setzero_ps()), ...);
    for (int64_t t = 0; t < length; t += 2) {
        const bf16 *x = values[t] + from, *y = values[t + 1] + from;
        const auto add = [&](size_t c, __m512& l, __m512& h) {
            int32_t both;
            memcpy(&both, weights + int64_t(c * 32 / D) * ld + t, 4);
            const __m512i weight = _mm512_set1_epi32(both), a = loaded(x + c * 32), b = loaded(y + c * 32);
            l = _mm512_dpbf16_ps(l, pairs(_mm512_unpacklo_epi16(a, b)), pairs(weight));
            h = _mm512_dpbf16_ps(h, pairs(_mm512_unpackhi_epi16(a, b)), pairs(weight));
        };
        (add(C, low[C], high[C]), ...);
    }
    // Columns 0-3 and 4-7 of every eight have been apart.
    const __m512i first = _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    ((_mm512_storeu_ps(out + C * 32, _mm512_permutex2var_ps(low[C], first, high[C])),
      _mm512_storeu_ps(out + C * 32 + W, _mm512_permutex2var_ps(low[C], second, high[C]))),
     ...);
}
#else
constexpr bool HAS_BF16_PAIRS = false;

static inline void round_to_bf16(const float*, bf16*, int64_t) {}
template <int D>
static inline void dots_of_four(const bf16*, const bf16* const*, int64_t, int64_t, float*, int64_t) {}
template <int D, size_t... C>
static inline void mix(std::index_sequence<C...>, const bf16* const*, int64_t, int64_t, const bf16*, int64_t, float*) {}
#endif

// Turns scores, of which there are ld with the padding, into weights; returns 1 / their sum.
static inline float softmax(float* p, int64_t length, int64_t ld, float scale) {
    for (int64_t t = length; t < ld; t++) p[t] = -INFINITY;
    const float top = largest(p, ld);
    float total = 0;
    for (int32_t t = 0; t < ld; t++) {
        p[t] = exponential((p[t] - top) * scale);
        total += p[t];
    }
    for (int64_t t = length; t < ld; t++) p[t] = 0;
    return 1.0f / total;
}

// softmax(q · keys / √d_k) · values in every head; at(t) is the address of all heads' K | V of position t, which are read
// once, from first to last. D: d_k and d_v where they are equal and known beforehand, else 0.
template <int D, class Q, class T, class At>
static inline void attend_row(const Q* q, At at, int64_t length, const Heads& heads, Scratch& scratch, Q* out) {
    const int32_t d_k = D ? D : int32_t(heads.d_k), d_v = D ? D : int32_t(heads.d_v);
    const int64_t ld = whole_vectors(length + 1);  // of the weights, so that no exponential is taken by itself
    const int64_t n_places = whole_vectors(2 * (length + 1));
    float* const memory = scratch.take(n_places + heads.kv() + 2 * heads.n * ld);
    float *query = memory + n_places, *sum = query + heads.keys(), *p = sum + heads.values();
    const float scale = 1.0f / std::sqrt(float(d_k));
    for (int32_t j = 0; j < heads.keys(); j++) query[j] = to_float(q[j]);
    if constexpr (HAS_BF16_PAIRS && D > 0 && std::is_same_v<T, bf16>) {
        if (heads.n % 4 == 0) {
            const bf16** const places = reinterpret_cast<const bf16**>(memory);
            for (int64_t t = 0; t < length; t++) places[t] = at(t);
            places[length] = places[length - 1];
            bf16 *const rounded = reinterpret_cast<bf16*>(sum), *const weights = reinterpret_cast<bf16*>(p + heads.n * ld);
            round_to_bf16(query, rounded, heads.keys());
            for (int64_t h = 0; h < heads.n; h += 4)
                dots_of_four<D>(rounded + h * D, places, h * D, length, p + h * ld, ld);
            float* const inverse = query;
            for (int64_t h = 0; h < heads.n; h++) inverse[h] = softmax(p + h * ld, length, ld, scale);
            round_to_bf16(p, weights, heads.n * ld);
            for (int64_t h = 0; h < heads.n; h += 4)
                mix<D>(std::make_index_sequence<4 * D / 32>(), places, heads.keys() + h * D, length, weights + h * ld,
                       ld, sum + h * D);
            for (int64_t h = 0; h < heads.n; h++)
                for (int32_t j = 0; j < D; j++) put(out[h * D + j], sum[h * D + j] * inverse[h]);
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
    for (int64_t h = 0; h < heads.n; h++) {
        const float inverse = softmax(p + h * ld, length, ld, scale);
        for (int32_t t = 0; t < ld; t++) p[h * ld + t] *= inverse;
    }
    for (int32_t j = 0; j < heads.values(); j++) sum[j] = 0;
    for (int64_t t = 0; t < length; t++) {
        const T* const values = at(t) + heads.keys();
        for (int64_t h = 0; h < heads.n; h++) {
            const float weight = p[h * ld + t];
            for (int32_t j = 0; j < d_v; j++) sum[h * d_v + j] += weight * to_float(values[h * d_v + j]);
        }
    }
    for (int32_t j = 0; j < heads.values(); j++) put(out[j], sum[j]);
}

// One function for every width of a head that the compiler shall know beforehand.
template <class Do>
static inline void with_width(const Heads& heads, Do run) {
    const int64_t d = heads.d_k == heads.d_v ? heads.d_k : 0;
    if (d == 64) run(std::integral_constant<int, 64>());
    else if (d == 32) run(std::integral_constant<int, 32>());
    else run(std::integral_constant<int, 0>());
}

// What a search keeps: of each slot, in which slot its ancestors wrote at each position, so that reordering a beam moves
// no key; of each row, its slot and its new position; of each sentence, its source's length. Of all rows only those
// named in `rows` are computed.
struct Beams {
    int32_t* ancestors;  // (slot, position)
    const int64_t *rows, *slots, *lengths, *src_lengths;
    int64_t n_rows, beam, capacity;
    Heads heads;
};

// Self-attention of the r-th of the rows. qkv: Q | K | V of all heads. The new keys and values enter the cache, (slot,
// position, K | V).
template <int D, class Q, class T>
static inline void attend_to_past(const Beams& of, int64_t r, const Q* qkv, T* cache, Scratch& scratch, Q* out) {
    const Heads& heads = of.heads;
    const int64_t row = of.rows[r], length = of.lengths[row], kv = heads.kv();
    int32_t* const mine = of.ancestors + of.slots[row] * of.capacity;
    const auto at = [&](int64_t t) { return cache + (mine[t] * of.capacity + t) * kv; };
    mine[length] = int32_t(of.slots[row]);
    T* const to = at(length);
    for (int32_t j = 0; j < kv; j++) put(to[j], to_float(qkv[heads.keys() + j]));
    attend_row<D, Q, T>(qkv, at, length + 1, heads, scratch, out);
}

// Attention to the source. memories: of each sentence the address of its (src, K | V of all heads).
template <int D, class Q, class T>
static inline void attend_to_source(const Beams& of, int64_t r, const Q* q, const T* const* memories, Scratch& scratch,
                                    Q* out) {
    const int64_t sentence = of.rows[r] / of.beam, kv = of.heads.kv();
    const T* const memory = memories[sentence];
    attend_row<D, Q, T>(
        q, [&](int64_t t) { return memory + t * kv; }, of.src_lengths[sentence], of.heads, scratch, out);
}

template <class Do>
static void for_rows(int64_t n, Do run) {
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for
        for (int64_t i = 0; i < n; i++) run(i, scratch);
    }
}
