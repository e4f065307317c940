// Attention of sentences that lie end to end, for training: rows offsets[s] to offsets[s + 1] belong to sentence s. One
// thread takes one head of one sentence, whose matrices are small and stay in its cache; the backward pass works the
// weights out again.

#pragma once

#include "dropout.h"

#include <type_traits>
#include <utility>

struct Place {  // one head of one sentence: its first rows and how many there are
    int64_t head, q0, nq, k0, nk;
};

struct Shape {
    const int64_t *q_offsets, *k_offsets;
    int64_t n_sentences, n_heads, d_k, d_v, q_stride, k_stride, v_stride;
    uint64_t seed;  // of the dropout of weights
    float rate;
    int32_t causal;

    Place place(int64_t pair) const {
        const int64_t sentence = pair / n_heads, q0 = q_offsets[sentence], k0 = k_offsets[sentence];
        return {pair % n_heads, q0, q_offsets[sentence + 1] - q0, k0, k_offsets[sentence + 1] - k0};
    }
    // Rows of weights have as many columns as their sentence has keys: drawn places keep their elements apart.
    uint32_t first_element(const Dropout& dropout, int64_t query, int64_t head) const {
        return random_bits(uint32_t(query * n_heads + head), dropout.key1, dropout.key0);
    }
};

// Calls run(place, scratch) for every head of every sentence, in all threads.
template <class Do>
static void for_heads(const Shape& s, Do run) {
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for schedule(dynamic, 16)
        for (int64_t pair = 0; pair < s.n_sentences * s.n_heads; pair++) run(s.place(pair), scratch);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// In float, for all types, widths and processors.

template <int VECS>
static inline void columns(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb, float* c,
                           int64_t ldc, int64_t m, int64_t k) {
    int64_t i = rows<7, VECS>(0, a, a_row, a_col, b, ldb, c, ldc, m, k);
    i = rows<4, VECS>(i, a, a_row, a_col, b, ldb, c, ldc, m, k);
    i = rows<2, VECS>(i, a, a_row, a_col, b, ldb, c, ldc, m, k);
    rows<1, VECS>(i, a, a_row, a_col, b, ldb, c, ldc, m, k);
}

static void product(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t ldb, float* c, int64_t ldc,
                    int64_t m, int64_t n, int64_t k) {
    int64_t j = 0;
    for (; j + 2 * W <= n; j += 2 * W) columns<2>(a, a_row, a_col, b + j, ldb, c + j, ldc, m, k);
    if (j < n) columns<1>(a, a_row, a_col, b + j, ldb, c + j, ldc, m, k);
}

// The rows of one head as float, filled up with zeros to whole vectors; and the same with rows and columns swapped.
template <class T>
static void read_rows(const T* from, int64_t stride, float* to, int64_t n, int64_t d) {
    const int64_t ld = whole_vectors(d);
    for (int64_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < d; j++) to[i * ld + j] = to_float(from[i * stride + j]);
        for (int64_t j = d; j < ld; j++) to[i * ld + j] = 0;
    }
}
#ifdef __AVX512F__  // elsewhere a shuffle of 16 numbers is many instructions
// Of 16 x 16 numbers, in every square of 2 STEP, the upper right quarter and the lower left one change places. With steps
// of 1, 2, 4 and 8 rows have become columns.
template <int STEP>
static inline void swap_quarters(Vec* x) {
    Ints low, high;
    for (int i = 0; i < W; i++) {
        low[i] = i & STEP ? int(W) + i - STEP : i;
        high[i] = i & STEP ? int(W) + i : i + STEP;
    }
    for (int i = 0; i < W; i++)
        if (!(i & STEP)) {
            const Vec a = x[i], b = x[i + STEP];
            x[i] = __builtin_shuffle(a, b, low);
            x[i + STEP] = __builtin_shuffle(a, b, high);
        }
}
static inline void swap_axes_of_16(Vec* x) {
    swap_quarters<1>(x);
    swap_quarters<2>(x);
    swap_quarters<4>(x);
    swap_quarters<8>(x);
}
static void swap_axes(const float* from, int64_t ld_from, float* to, int64_t n, int64_t d) {
    const int64_t ld = whole_vectors(n);
    for (int64_t j = 0; j < d; j += W)
        for (int64_t i = 0; i < n; i += W) {
            Vec x[W];
            for (int64_t r = 0; r < W; r++) x[r] = i + r < n ? load(from + (i + r) * ld_from + j) : Vec{};
            swap_axes_of_16(x);
            for (int64_t c = 0; c < W && j + c < d; c++) memcpy(to + (j + c) * ld + i, &x[c], sizeof(Vec));
        }
}
#else
static void swap_axes(const float* from, int64_t ld_from, float* to, int64_t n, int64_t d) {
    const int64_t ld = whole_vectors(n);
    for (int32_t j = 0; j < d; j++) {
        for (int64_t i = 0; i < n; i++) to[j * ld + i] = from[i * ld_from + j];
        for (int64_t i = n; i < ld; i++) to[j * ld + i] = 0;
    }
}
#endif
template <class T>
static void write_rows(const float* from, T* to, int64_t stride, int64_t n, int64_t d, float scale) {
    const int64_t ld = whole_vectors(d);
    for (int64_t i = 0; i < n; i++)
        for (int32_t j = 0; j < d; j++) put(to[i * stride + j], from[i * ld + j] * scale);
}

// Turns the first `seen` of ld scores, whole vectors, into weights, the others into zeros.
static inline void softmax_of_first(float* p, int64_t seen, int64_t ld, float scale) {
    Vec tops = Vec{} - INFINITY, totals = {};
    for (int64_t j = 0; j < seen; j += W) tops = larger(tops, first_places(load(p + j), seen - j, -INFINITY));
    const float top = folded(tops, larger);
    for (int64_t j = 0; j < ld; j += W) {
        const Vec e = j < seen ? first_places(exponential((load(p + j) - top) * scale), seen - j, 0) : Vec{};
        store(e, p + j);
        totals += e;
    }
    const float inverse = 1.0f / folded(totals, [](Vec a, Vec b) { return a + b; });
    for (int64_t j = 0; j < ld; j += W) store(load(p + j) * inverse, p + j);
}

template <class T>
static void attend_in_floats(const T* q, const T* k, const T* v, T* out, const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(s.d_k));
    const int64_t kd = whole_vectors(s.d_k), vd = whole_vectors(s.d_v);
    const Dropout dropout(s.seed, s.rate);
    for_heads(s, [&](const Place& at, Scratch& scratch) {
        const auto [head, q0, nq, k0, nk] = at;
        const int64_t ld = whole_vectors(nk);
        float* Q = scratch.take(nq * (kd + ld + vd) + nk * (kd + vd) + s.d_k * ld);
        float *K = Q + nq * kd, *KT = K + nk * kd, *V = KT + s.d_k * ld, *P = V + nk * vd, *O = P + nq * ld;
        read_rows(q + q0 * s.q_stride + head * s.d_k, s.q_stride, Q, nq, s.d_k);
        read_rows(k + k0 * s.k_stride + head * s.d_k, s.k_stride, K, nk, s.d_k);
        read_rows(v + k0 * s.v_stride + head * s.d_v, s.v_stride, V, nk, s.d_v);
        swap_axes(K, kd, KT, nk, s.d_k);
        product(Q, kd, 1, KT, ld, P, ld, nq, ld, s.d_k);
        for (int64_t i = 0; i < nq; i++) {
            float* p = P + i * ld;
            const int64_t seen = s.causal ? i + 1 : nk;
            softmax_of_first(p, seen, ld, scale);
            if (s.rate > 0) {
                const uint32_t first = s.first_element(dropout, q0 + i, head);
                for (int32_t j = 0; j < seen; j++) p[j] *= dropout.factor(first, j);
            }
        }
        product(P, ld, 1, V, vd, O, vd, nq, vd, nk);
        write_rows(O, out + q0 * s.n_heads * s.d_v + head * s.d_v, s.n_heads * s.d_v, nq, s.d_v, 1.0f);
    });
}

template <class T>
static void attend_backward_in_floats(const T* q, const T* k, const T* v, const T* dout, T* dq, T* dk, T* dv,
                                      const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(s.d_k));
    const int64_t kd = whole_vectors(s.d_k), vd = whole_vectors(s.d_v), out_stride = s.n_heads * s.d_v;
    const Dropout dropout(s.seed, s.rate);
    for_heads(s, [&](const Place& at, Scratch& scratch) {
        const auto [head, q0, nq, k0, nk] = at;
        const int64_t ld = whole_vectors(nk);
        const int64_t widest = std::max(kd, vd);
        float* Q = scratch.take(nq * (kd + vd + 2 * ld) + nk * (kd + vd) + (s.d_k + s.d_v) * ld +
                                std::max(nq, nk) * widest);
        float *K = Q + nq * kd, *KT = K + nk * kd, *V = KT + s.d_k * ld, *VT = V + nk * vd, *dO = VT + s.d_v * ld;
        float *P = dO + nq * vd, *dP = P + nq * ld, *result = dP + nq * ld;
        read_rows(q + q0 * s.q_stride + head * s.d_k, s.q_stride, Q, nq, s.d_k);
        read_rows(k + k0 * s.k_stride + head * s.d_k, s.k_stride, K, nk, s.d_k);
        read_rows(v + k0 * s.v_stride + head * s.d_v, s.v_stride, V, nk, s.d_v);
        read_rows(dout + q0 * out_stride + head * s.d_v, out_stride, dO, nq, s.d_v);
        swap_axes(K, kd, KT, nk, s.d_k);
        swap_axes(V, vd, VT, nk, s.d_v);
        product(Q, kd, 1, KT, ld, P, ld, nq, ld, s.d_k);
        product(dO, vd, 1, VT, ld, dP, ld, nq, ld, s.d_v);
        for (int64_t i = 0; i < nq; i++) {
            float *p = P + i * ld, *dp = dP + i * ld;
            softmax_of_first(p, s.causal ? i + 1 : nk, ld, scale);
            const uint32_t first = s.first_element(dropout, q0 + i, head);
            float mean = 0;  // of dP under P
            for (int32_t j = 0; j < ld; j++) {
                if (s.rate > 0) dp[j] *= dropout.factor(first, j);
                mean += p[j] * dp[j];
            }
            for (int32_t j = 0; j < ld; j++) {
                dp[j] = p[j] * (dp[j] - mean);
                if (s.rate > 0) p[j] *= dropout.factor(first, j);
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

// ---------------------------------------------------------------------------------------------------------------------
// By pairs of bf16 numbers. 16 queries lie side by side in a vector, keys one below the other: a query's maximum and sum
// run along the vectors, and weights come out as the pairs that the next products take. Maxima, exponentials, sums are float.

#ifdef HEED_HAS_BF16_PAIRS

struct Rows {  // of one head of one sentence; those behind the last one are the last one
    const bf16* data;
    int64_t stride, n;
    const bf16* operator[](int64_t i) const { return data + std::min(i, n - 1) * stride; }
};

// Of up to 16 rows from the i-th, zeros for the rest, to[c]: each row's c-th pair of columns.
template <int D>
static inline void turn(const Rows& rows, int64_t i, float* to) {
    for (int c = 0; c < D; c += 2 * W, to += W * W) {
        Vec x[W];
        for (int r = 0; r < W; r++)
            x[r] = i + r < rows.n ? load(reinterpret_cast<const float*>(rows[i + r] + c)) : Vec{};
        swap_axes_of_16(x);
        for (int r = 0; r < W; r++) store(x[r], to + r * W);
    }
}

static inline __m512i twice_16(const void* pair) {
    int32_t both;
    memcpy(&both, pair, 4);
    return _mm512_set1_epi32(both);
}

// to[r]: the products of the i-th row and those behind it with the 16 that were turned.
template <int D, size_t... R>
static inline void dots(std::index_sequence<R...>, const Rows& rows, int64_t i, const float* turned, float* to) {
    const bf16* const row[] = {rows[i + R]...};
    __m512 sum[] = {((void)R, _mm512_setzero_ps())...};
    for (int c = 0; c < D; c += 2) {
        const __m512i x = loaded(turned + c / 2 * W);
        ((sum[R] = _mm512_dpbf16_ps(sum[R], pairs(x), pairs(twice_16(row[R] + c)))), ...);
    }
    (_mm512_storeu_ps(to + R * W, sum[R]), ...);
}

template <int D>  // of n rows, and up to 7 more places in `to`
static inline void all_dots(const Rows& rows, int64_t n, const float* turned, float* to) {
    for (int64_t i = 0; i < n; i += 8)
        if (n - i > 4)
            dots<D>(std::make_index_sequence<8>(), rows, i, turned, to + i * W);
        else
            dots<D>(std::make_index_sequence<4>(), rows, i, turned, to + i * W);
}

// Pairs of weights: the one of result r for rows 2t and 2t + 1 lies at data[r * row + t * column].
struct Weights {
    const int32_t* data;
    int64_t row, column;
};

// N results, each the sum of the rows from `first`, which is even, to the n-th, by their weights, times its factor.
template <size_t N, size_t... C>
static inline void sums(std::index_sequence<C...>, const Rows& rows, int64_t first, int64_t n, const Weights& weights,
                        const float* factors, bf16* to, int64_t stride) {
    constexpr size_t VECS = sizeof...(C) / N;  // C counts results and in each its 32 columns
    __m512 low[] = {((void)C, _mm512_setzero_ps())...}, high[] = {((void)C, _mm512_setzero_ps())...};
    for (int64_t t = first; t < n; t += 2) {
        const bf16 *a = rows[t], *b = rows[t + 1];
        const int32_t* const weight = weights.data + t / 2 * weights.column;
        __m512i even[VECS], odd[VECS];
        for (size_t c = 0; c < VECS; c++) {
            const __m512i x = loaded(a + c * 32), y = loaded(b + c * 32);
            even[c] = _mm512_unpacklo_epi16(x, y);
            odd[c] = _mm512_unpackhi_epi16(x, y);
        }
        ((low[C] = _mm512_dpbf16_ps(low[C], pairs(even[C % VECS]), pairs(twice_16(weight + C / VECS * weights.row))),
          high[C] = _mm512_dpbf16_ps(high[C], pairs(odd[C % VECS]), pairs(twice_16(weight + C / VECS * weights.row)))),
         ...);
    }
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);  // columns 0-3 and 4-7 of every eight have been apart
    const auto finish = [&](size_t c) {
        const __m512 factor = _mm512_set1_ps(factors[c / VECS]);
        const auto both = _mm512_cvtne2ps_pbh(_mm512_mul_ps(high[c], factor), _mm512_mul_ps(low[c], factor));
        _mm512_storeu_si512(to + c / VECS * stride + c % VECS * 32,
                            _mm512_permutexvar_epi64(order, reinterpret_cast<const __m512i&>(both)));
    };
    (finish(C), ...);
}

template <int D>
static inline void all_sums(const Rows& rows, int64_t first, int64_t n, Weights weights, const float* factors,
                            int64_t n_results, bf16* to, int64_t stride) {
    const auto some = [&](auto n_some) {
        constexpr size_t N = n_some;
        sums<N>(std::make_index_sequence<N * D / 32>(), rows, first, n, weights, factors, to, stride);
        weights.data += N * weights.row;
        factors += N;
        to += N * stride;
        n_results -= N;
    };
    while (n_results >= 4) some(std::integral_constant<size_t, 4>());
    if (n_results >= 2) some(std::integral_constant<size_t, 2>());
    if (n_results) some(std::integral_constant<size_t, 1>());
}

// Up to 16 queries of a head of a sentence, from the i0-th: which of them see which keys, and the dropout of weights.
struct Queries {
    int64_t i0, n, n_keys;  // of the keys, those that any of them sees
    bool causal;
    const Dropout& dropout;
    bool drops;
    Bits first;  // of each query's elements

    Queries(const Shape& s, const Dropout& dropout, const Place& at, int64_t i0)
        : i0(i0), n(std::min(W, at.nq - i0)), n_keys(s.causal ? std::min(at.nk, i0 + W) : at.nk), causal(s.causal),
          dropout(dropout), drops(s.rate > 0), first{} {
        if (drops)
            for (int64_t i = 0; i < n; i++) first[i] = s.first_element(dropout, at.q0 + i0 + i, at.head);
    }
    __mmask16 seeing(int64_t key) const {
        const uint32_t real = (1u << n) - 1;
        return __mmask16(causal && key > i0 ? real & (0xffffu << (key - i0)) : real);
    }
    Vec factors(int64_t key) const {
        const auto dropped = random_bits(first + uint32_t(key), dropout.key0, dropout.key1) < dropout.n_dropped;
        return dropped ? Vec{} : Vec{} + dropout.scale;
    }
    // The scores become exponentials; returns 1 / their sums.
    Vec softmax(float* scores, float scale) const {
        Vec top = Vec{} - INFINITY, total = {};
        for (int64_t j = 0; j < n_keys; j++)
            top = _mm512_mask_max_ps(top, seeing(j), top, load(scores + j * W));
        for (int64_t j = 0; j < n_keys; j++) {
            const Vec e = _mm512_maskz_mov_ps(seeing(j), exponential((load(scores + j * W) - top) * scale));
            store(e, scores + j * W);
            total += e;
        }
        return 1.0f / total;
    }
};

static inline __m512i as_bits(Vec x) {  // of 16 numbers in bf16, each in 32 bits
    const __m256bh rounded = _mm512_cvtneps_pbh(x);
    return _mm512_cvtepu16_epi32(reinterpret_cast<const __m256i&>(rounded));
}

// Of vectors one below the other, the numbers of rows 2t and 2t + 1 side by side; a last row alone has a zero.
static inline void pair_up(const float* x, int64_t n, int32_t* to) {
    for (int64_t t = 0; t < n; t += 2) {
        const __m512i second = t + 1 < n ? as_bits(load(x + (t + 1) * W)) : _mm512_setzero_si512();
        _mm512_storeu_si512(to + t / 2 * W, _mm512_or_si512(as_bits(load(x + t * W)), _mm512_slli_epi32(second, 16)));
    }
}

struct Aligned {  // parts of a thread's scratch memory, each of whole vectors
    float* next;
    Aligned(Scratch& scratch, int64_t n)
        : next(reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.take(n + W)) + 63) / 64 * 64)) {}
    float* take(int64_t n) { return std::exchange(next, next + whole_vectors(n)); }
};

template <int D>
static void attend_in_pairs(const bf16* q, const bf16* k, const bf16* v, bf16* out, const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(D));
    const Dropout dropout(s.seed, s.rate);
    const int64_t out_stride = s.n_heads * D;
    for_heads(s, [&](const Place& at, Scratch& scratch) {
        const Rows Q = {q + at.q0 * s.q_stride + at.head * D, s.q_stride, at.nq};
        const Rows K = {k + at.k0 * s.k_stride + at.head * D, s.k_stride, at.nk};
        const Rows V = {v + at.k0 * s.v_stride + at.head * D, s.v_stride, at.nk};
        Aligned memory(scratch, (D / 2 + at.nk + 8 + (at.nk + 1) / 2 + 1) * W);
        float *const turned = memory.take(D / 2 * W), *const p = memory.take((at.nk + 8) * W);
        float* const inverse = memory.take(W);
        int32_t* const weights = reinterpret_cast<int32_t*>(memory.take((at.nk + 1) / 2 * W));
        for (int64_t i0 = 0; i0 < at.nq; i0 += W) {
            const Queries queries(s, dropout, at, i0);
            turn<D>(Q, i0, turned);
            all_dots<D>(K, queries.n_keys, turned, p);
            store(queries.softmax(p, scale), inverse);
            if (queries.drops)
                for (int64_t j = 0; j < queries.n_keys; j++) store(load(p + j * W) * queries.factors(j), p + j * W);
            pair_up(p, queries.n_keys, weights);
            all_sums<D>(V, 0, queries.n_keys, {weights, 1, W}, inverse, queries.n,
                        out + (at.q0 + i0) * out_stride + at.head * D, out_stride);
        }
    });
}

template <int D>
static void attend_backward_in_pairs(const bf16* q, const bf16* k, const bf16* v, const bf16* dout, bf16* dq, bf16* dk,
                                     bf16* dv, const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(D));
    const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const Dropout dropout(s.seed, s.rate);
    for_heads(s, [&](const Place& at, Scratch& scratch) {
        const int64_t column = at.head * D, out_stride = s.n_heads * D;
        const Rows Q = {q + at.q0 * s.q_stride + column, s.q_stride, at.nq};
        const Rows K = {k + at.k0 * s.k_stride + column, s.k_stride, at.nk};
        const Rows V = {v + at.k0 * s.v_stride + column, s.v_stride, at.nk};
        const Rows dO = {dout + at.q0 * out_stride + column, out_stride, at.nq};
        const int64_t ld = whole_vectors(at.nq) / 2;  // pairs of queries, of the weights by key
        Aligned memory(scratch, (D + 2 * (at.nk + 8) + (at.nk + 1) / 2) * W + 2 * whole_vectors(at.nk * ld));
        float *const turned_q = memory.take(D / 2 * W), *const turned_do = memory.take(D / 2 * W);
        float *const p = memory.take((at.nk + 8) * W), *const dp = memory.take((at.nk + 8) * W);
        int32_t* const weights = reinterpret_cast<int32_t*>(memory.take((at.nk + 1) / 2 * W));
        int32_t* const ds_by_key = reinterpret_cast<int32_t*>(memory.take(at.nk * ld));
        int32_t* const p_by_key = reinterpret_cast<int32_t*>(memory.take(at.nk * ld));
        for (int64_t i0 = 0; i0 < at.nq; i0 += W) {
            const Queries queries(s, dropout, at, i0);
            turn<D>(Q, i0, turned_q);
            turn<D>(dO, i0, turned_do);
            all_dots<D>(K, queries.n_keys, turned_q, p);
            all_dots<D>(V, queries.n_keys, turned_do, dp);
            const Vec inverse = queries.softmax(p, scale);
            Vec mean = {};  // of dP under P
            for (int64_t j = 0; j < queries.n_keys; j++) {
                if (queries.drops) store(load(dp + j * W) * queries.factors(j), dp + j * W);
                mean += load(p + j * W) * load(dp + j * W);
            }
            mean *= inverse;
            for (int64_t j = 0; j < queries.n_keys; j++) {
                const __mmask16 seeing = queries.seeing(j);  // elsewhere 0 times what may be infinite
                const Vec weight = load(p + j * W) * inverse;
                const Vec ds = _mm512_maskz_mov_ps(seeing, weight * (load(dp + j * W) - mean) * scale);
                const Vec dropped = _mm512_maskz_mov_ps(seeing, queries.drops ? weight * queries.factors(j) : weight);
                store(ds, dp + j * W);
                const __m256bh a = _mm512_cvtneps_pbh(ds), b = _mm512_cvtneps_pbh(dropped);
                memcpy(ds_by_key + j * ld + i0 / 2, &a, sizeof(a));
                memcpy(p_by_key + j * ld + i0 / 2, &b, sizeof(b));
            }
            pair_up(dp, queries.n_keys, weights);
            all_sums<D>(K, 0, queries.n_keys, {weights, 1, W}, ones, queries.n, dq + (at.q0 + i0) * s.q_stride + column,
                        s.q_stride);
        }
        for (int64_t j = 0; j < at.nk; j += W) {  // causal: earlier queries than j do not see these keys
            const int64_t first = s.causal ? j : 0, n = std::min(W, at.nk - j);
            all_sums<D>(Q, first, at.nq, {ds_by_key + j * ld, ld, 1}, ones, n, dk + (at.k0 + j) * s.k_stride + column,
                        s.k_stride);
            all_sums<D>(dO, first, at.nq, {p_by_key + j * ld, ld, 1}, ones, n, dv + (at.k0 + j) * s.v_stride + column,
                        s.v_stride);
        }
    });
}

#endif

// softmax(Q Kᵀ / √d_k) V in every head of every sentence (equation 1), weights dropped out at a rate.
template <class T>
static void attend(const T* q, const T* k, const T* v, T* out, const Shape& s) {
    attend_in_floats(q, k, v, out, s);
}

// Its gradients, given that of `out`.
template <class T>
static void attend_backward(const T* q, const T* k, const T* v, const T* dout, T* dq, T* dk, T* dv, const Shape& s) {
    attend_backward_in_floats(q, k, v, dout, dq, dk, dv, s);
}
#ifdef HEED_HAS_BF16_PAIRS
template <>
void attend(const bf16* q, const bf16* k, const bf16* v, bf16* out, const Shape& s) {
    if (s.d_k == s.d_v && s.d_k == 64)
        attend_in_pairs<64>(q, k, v, out, s);
    else if (s.d_k == s.d_v && s.d_k == 32)
        attend_in_pairs<32>(q, k, v, out, s);
    else
        attend_in_floats(q, k, v, out, s);
}
template <>
void attend_backward(const bf16* q, const bf16* k, const bf16* v, const bf16* dout, bf16* dq, bf16* dk, bf16* dv,
                     const Shape& s) {
    if (s.d_k == s.d_v && s.d_k == 64)
        attend_backward_in_pairs<64>(q, k, v, dout, dq, dk, dv, s);
    else if (s.d_k == s.d_v && s.d_k == 32)
        attend_backward_in_pairs<32>(q, k, v, dout, dq, dk, dv, s);
    else
        attend_backward_in_floats(q, k, v, dout, dq, dk, dv, s);
}
#endif
