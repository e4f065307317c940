// Attention of packed sequences by products of pairs of bf16 numbers. The scores of 16 queries stand in the lanes of a
// vector, key after key: maxima and sums run along the vectors, and weights come out as the pairs that the next
// products take. Maxima, exponentials and sums are float.

#pragma once

#include "attention_heads.h"

namespace heed {

struct Rows {  // of one head of one sequence; indices behind the last row mean the last row
    const bf16* data;
    int64_t stride, n;
    const bf16* operator[](int64_t i) const { return data + std::min(i, n - 1) * stride; }
};

// Of up to 16 rows from the i-th, zeros for the rest: to[c] is the c-th pair of columns of each row.
template <int D>
static inline void transpose_pairs(const Rows& rows, int64_t i, float* to) {
    for (int c = 0; c < D; c += 2 * LANES, to += LANES * LANES) {
        Floats x[LANES];
        for (int r = 0; r < LANES; r++) x[r] = i + r < rows.n ? load_as<Floats>(rows[i + r] + c) : Floats{};
        transpose_square(x);
        for (int r = 0; r < LANES; r++) store(x[r], to + r * LANES);
    }
}

// to[r]: the products of the i-th row and those after it with the 16 that were transposed.
template <int D, size_t... R>
static inline void dots(std::index_sequence<R...>, const Rows& rows, int64_t i, const float* transposed, float* to) {
    const bf16* const row[] = {rows[i + int64_t(R)]...};
    Floats sum[] = {((void)R, Floats{})...};
    for (int c = 0; c < D; c += 2) {
        const Bits x = load_as<Bits>(transposed + c / 2 * LANES);
        ((sum[R] = add_pair_products(sum[R], x, broadcast_pair(row[R] + c))), ...);
    }
    (store(sum[R], to + int64_t(R) * LANES), ...);
}

template <int D>  // of n rows, and up to 7 more in `to`
static inline void all_dots(const Rows& rows, const float* transposed, float* to, int64_t n) {
    for (int64_t i = 0; i < n; i += 8)
        if (n - i > 4)
            dots<D>(std::make_index_sequence<8>(), rows, i, transposed, to + i * LANES);
        else
            dots<D>(std::make_index_sequence<4>(), rows, i, transposed, to + i * LANES);
}

// Pairs of weights: the pair of result r for rows 2t and 2t + 1 is at data[r * row + t * column].
struct Weights {
    const int32_t* data;
    int64_t row, column;
};

// N results, each the weighted sum of the rows from `first`, which is even, to the n-th, times its factor.
template <size_t N, size_t... C>
static inline void weighted_sums(std::index_sequence<C...>, const Rows& rows, int64_t first, int64_t n,
                                 const Weights& weights, const float* factors, bf16* to, int64_t stride) {
    constexpr size_t VECS = sizeof...(C) / N;  // C counts results and, in each, 32 columns at a time
    Floats low[] = {((void)C, Floats{})...}, high[] = {((void)C, Floats{})...};
    for (int64_t t = first; t < n; t += 2) {
        const bf16 *a = rows[t], *b = rows[t + 1];
        const int32_t* const pairs = weights.data + t / 2 * weights.column;
        Bits even[VECS], odd[VECS];
        for (size_t c = 0; c < VECS; c++) {
            const Shorts x = load_as<Shorts>(a + c * 32), y = load_as<Shorts>(b + c * 32);
            even[c] = bit_cast<Bits>(interleave_low(x, y));
            odd[c] = bit_cast<Bits>(interleave_high(x, y));
        }
        const auto pair = [&](size_t c) { return broadcast_pair(pairs + int64_t(c / VECS) * weights.row); };
        ((low[C] = add_pair_products(low[C], even[C % VECS], pair(C)),
          high[C] = add_pair_products(high[C], odd[C % VECS], pair(C))),
         ...);
    }
    const auto finish = [&](size_t c) {
        const float factor = factors[c / VECS];
        const Longs both = bit_cast<Longs>(rounded_to_bf16(low[c] * factor, high[c] * factor));
        // low has columns 0 to 3 of every eight, high 4 to 7.
        const Longs in_order = shuffle(both, both, [](int i) { return i / 2 + i % 2 * 4; });
        store(in_order, to + int64_t(c / VECS) * stride + c % VECS * 32);
    };
    (finish(C), ...);
}

template <int D>
static inline void all_weighted_sums(const Rows& rows, int64_t first, int64_t n, Weights weights, const float* factors,
                                     bf16* to, int64_t stride, int64_t n_results) {
    const auto some = [&](auto n_some) {
        constexpr size_t N = n_some;
        weighted_sums<N>(std::make_index_sequence<N * D / 32>(), rows, first, n, weights, factors, to, stride);
        weights.data += int64_t(N) * weights.row;
        factors += N;
        to += int64_t(N) * stride;
        n_results -= int64_t(N);
    };
    while (n_results >= 4) some(std::integral_constant<size_t, 4>());
    if (n_results >= 2) some(std::integral_constant<size_t, 2>());
    if (n_results) some(std::integral_constant<size_t, 1>());
}

// Up to 16 queries of a head of a sequence, from the i0-th: which keys each of them sees, and the dropout of its
// weights.
struct Queries {
    int64_t i0, n, n_keys;  // n_keys: keys that any of them sees
    bool causal;
    const Dropout& dropout;
    bool drops;
    Mask real;   // queries that exist
    Bits first;  // each query's first_element

    Queries(const Shape& s, const Dropout& dropout, const Span& span, int64_t i0)
        : i0(i0),
          n(std::min(LANES, span.nq - i0)),
          n_keys(s.causal ? std::min(span.nk, i0 + LANES) : span.nk),
          causal(s.causal),
          dropout(dropout),
          drops(s.rate > 0),
          real(lanes_below(n)),
          first{} {
        if (drops)
            for (int64_t i = 0; i < n; i++) first[i] = first_element(s, dropout, span.q0 + i0 + i, span.head);
    }
    Mask seeing(int64_t key) const { return causal && key > i0 ? both(real, lanes_from(key - i0)) : real; }
    Floats factors(int64_t key) const {
        const auto dropped = random_bits(first + uint32_t(key), dropout.key0, dropout.key1) < dropout.n_dropped;
        return dropped ? Floats{} : Floats{} + dropout.scale;
    }
    // The scores become exponentials; returns 1 / their sums.
    Floats softmax_numerators(float* scores, float scale) const {
        Floats top = Floats{} - INFINITY, total = {};
        for (int64_t j = 0; j < n_keys; j++) top = select(seeing(j), larger(top, load(scores + j * LANES)), top);
        for (int64_t j = 0; j < n_keys; j++) {
            const Floats e = select(seeing(j), exponential((load(scores + j * LANES) - top) * scale), Floats{});
            store(e, scores + j * LANES);
            total += e;
        }
        return 1.0f / total;
    }
};

// Of n vectors, the numbers of vectors 2t and 2t + 1 as pairs; a last vector alone is paired with zeros.
static inline void pair_up(const float* x, int32_t* to, int64_t n) {
    const auto rounded = [](const float* from) { return widened_bits(rounded_to_bf16(load(from))); };
    for (int64_t t = 0; t < n; t += 2) {
        const Bits second = t + 1 < n ? rounded(x + (t + 1) * LANES) : Bits{};
        store(rounded(x + t * LANES) | second << 16, to + t / 2 * LANES);
    }
}

struct ScratchParts {  // parts of a thread's scratch memory, each of whole vectors
    float* next;
    ScratchParts(Scratch& scratch, int64_t n) : next(scratch.take(n)) {}
    float* take(int64_t n) { return std::exchange(next, next + whole_vectors(n)); }
    int32_t* take_pairs(int64_t n) { return reinterpret_cast<int32_t*>(take(n)); }
};

template <int D>
static void attend_in_pairs(const bf16* q, const bf16* k, const bf16* v, bf16* out, const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(D));
    const Dropout dropout(s.seed, s.rate);
    const int64_t out_stride = s.n_heads * D;
    for_heads(s, [=](const Span& span, Scratch& scratch) {
        const int64_t column = span.head * D;
        const Rows Q = {q + span.q0 * s.q_stride + column, s.q_stride, span.nq};
        const Rows K = {k + span.k0 * s.k_stride + column, s.k_stride, span.nk};
        const Rows V = {v + span.k0 * s.v_stride + column, s.v_stride, span.nk};
        ScratchParts memory(scratch, (D / 2 + span.nk + 8 + (span.nk + 1) / 2 + 1) * LANES);
        float *const q_pairs = memory.take(D / 2 * LANES), *const p = memory.take((span.nk + 8) * LANES);
        float* const inverse = memory.take(LANES);
        int32_t* const weights = memory.take_pairs((span.nk + 1) / 2 * LANES);
        for (int64_t i0 = 0; i0 < span.nq; i0 += LANES) {
            const Queries queries(s, dropout, span, i0);
            transpose_pairs<D>(Q, i0, q_pairs);
            all_dots<D>(K, q_pairs, p, queries.n_keys);
            store(queries.softmax_numerators(p, scale), inverse);
            if (queries.drops)
                for (int64_t j = 0; j < queries.n_keys; j++)
                    store(load(p + j * LANES) * queries.factors(j), p + j * LANES);
            pair_up(p, weights, queries.n_keys);
            all_weighted_sums<D>(V, 0, queries.n_keys, {weights, 1, LANES}, inverse,
                                 out + (span.q0 + i0) * out_stride + column, out_stride, queries.n);
        }
    });
}

template <int D>
static void attend_backward_in_pairs(const bf16* q, const bf16* k, const bf16* v, const bf16* dout, bf16* dq, bf16* dk,
                                     bf16* dv, const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(D));
    const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const Dropout dropout(s.seed, s.rate);
    for_heads(s, [=](const Span& span, Scratch& scratch) {
        const int64_t column = span.head * D, out_stride = s.n_heads * D;
        const Rows Q = {q + span.q0 * s.q_stride + column, s.q_stride, span.nq};
        const Rows K = {k + span.k0 * s.k_stride + column, s.k_stride, span.nk};
        const Rows V = {v + span.k0 * s.v_stride + column, s.v_stride, span.nk};
        const Rows dO = {dout + span.q0 * out_stride + column, out_stride, span.nq};
        const int64_t ld = whole_vectors(span.nq) / 2;  // pairs of queries, of the weights by key
        ScratchParts memory(scratch,
                            (D + 2 * (span.nk + 8) + (span.nk + 1) / 2) * LANES + 2 * whole_vectors(span.nk * ld));
        float *const q_pairs = memory.take(D / 2 * LANES), *const do_pairs = memory.take(D / 2 * LANES);
        float *const p = memory.take((span.nk + 8) * LANES), *const dp = memory.take((span.nk + 8) * LANES);
        int32_t* const weights = memory.take_pairs((span.nk + 1) / 2 * LANES);
        int32_t *const ds_by_key = memory.take_pairs(span.nk * ld), *const p_by_key = memory.take_pairs(span.nk * ld);
        for (int64_t i0 = 0; i0 < span.nq; i0 += LANES) {
            const Queries queries(s, dropout, span, i0);
            transpose_pairs<D>(Q, i0, q_pairs);
            transpose_pairs<D>(dO, i0, do_pairs);
            all_dots<D>(K, q_pairs, p, queries.n_keys);
            all_dots<D>(V, do_pairs, dp, queries.n_keys);
            const Floats inverse = queries.softmax_numerators(p, scale);
            Floats mean = {};  // of dP under P
            for (int64_t j = 0; j < queries.n_keys; j++) {
                if (queries.drops) store(load(dp + j * LANES) * queries.factors(j), dp + j * LANES);
                mean += load(p + j * LANES) * load(dp + j * LANES);
            }
            mean *= inverse;
            for (int64_t j = 0; j < queries.n_keys; j++) {
                const Mask seeing = queries.seeing(j);  // elsewhere 0 times what may be infinite
                const Floats weight = load(p + j * LANES) * inverse;
                const Floats ds = select(seeing, weight * (load(dp + j * LANES) - mean) * scale, Floats{});
                const Floats dropped = select(seeing, queries.drops ? weight * queries.factors(j) : weight, Floats{});
                store(ds, dp + j * LANES);
                store(rounded_to_bf16(ds), ds_by_key + j * ld + i0 / 2);
                store(rounded_to_bf16(dropped), p_by_key + j * ld + i0 / 2);
            }
            pair_up(dp, weights, queries.n_keys);
            all_weighted_sums<D>(K, 0, queries.n_keys, {weights, 1, LANES}, ones,
                                 dq + (span.q0 + i0) * s.q_stride + column, s.q_stride, queries.n);
        }
        for (int64_t j = 0; j < span.nk; j += LANES) {  // causal: queries before the j-th do not see these keys
            const int64_t first = s.causal ? j : 0, n = std::min(LANES, span.nk - j);
            all_weighted_sums<D>(Q, first, span.nq, {ds_by_key + j * ld, ld, 1}, ones,
                                 dk + (span.k0 + j) * s.k_stride + column, s.k_stride, n);
            all_weighted_sums<D>(dO, first, span.nq, {p_by_key + j * ld, ld, 1}, ones,
                                 dv + (span.k0 + j) * s.v_stride + column, s.v_stride, n);
        }
    });
}

}  // namespace heed
