// The passes of a training step that are no large matrix product: attention within a sentence, dropout with residual
// and layer normalization, ReLU with bias, embeddings with positions, the loss.
//
// Rows are tokens. The same call gives the same bits; another number of threads changes the order in which gradients of
// biases and norms are summed, nothing else.

#include "common.h"

// 32 random bits for element `index` of the dropout numbered `seed` (two rounds of multiply and shift: lowbias32 by
// Chris Wellons). Forward and backward pass draw the same bits, so that no mask is kept.
static inline uint32_t random_bits(uint32_t index, uint32_t key0, uint32_t key1) {
    uint32_t x = index + key0;
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= (x >> 15) ^ key1;
    x *= 0x846ca68bU;
    x ^= x >> 16;
    return x;
}

struct Dropout {
    uint32_t key0, key1, n_dropped;  // of 2^32
    float scale;
    Dropout(uint64_t seed, float rate)
        : key0(uint32_t(seed)), key1(uint32_t(seed >> 32)), n_dropped(uint32_t(double(rate) * 4294967296.0)),
          scale(1.0f / (1.0f - rate)) {}
    // For column j of the row whose first element has this index.
    inline float factor(uint32_t first, int32_t j) const {
        return random_bits(first + uint32_t(j), key0, key1) < n_dropped ? 0.0f : scale;
    }
};

// Sums of columns by several threads: each adds to its own row of numbers, and the rows are added in their order.
struct ColumnSums {
    const int64_t n_columns, n_rows;
    std::unique_ptr<float[]> rows;
    explicit ColumnSums(int64_t n)
        : n_columns(n), n_rows(omp_get_max_threads()), rows(new float[size_t(n_rows * n)]()) {}
    float* mine() { return rows.get() + omp_get_thread_num() * n_columns; }
    void add_to(float* total, int64_t first, int64_t n) const {
        for (int64_t r = 0; r < n_rows; r++)
            for (int64_t j = 0; j < n; j++) total[j] += rows[r * n_columns + first + j];
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// y = LayerNorm(x + dropout(branch)), equation of section 5.4. The sum's mean and 1/deviation are kept for the backward
// pass, which works out the normalised sum from y.

template <class T>
static void add_norm(const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y, float* mean, float* rstd,
                     int64_t n, int64_t d, float rate, uint64_t seed, float epsilon) {
#pragma omp parallel
    {
        const Dropout dropout(seed, rate);
        std::unique_ptr<float[]> s(new float[d]);
#pragma omp for
        for (int64_t i = 0; i < n; i++) {
            const T *xi = x + i * d, *bi = branch + i * d;
            T *si = sum + i * d, *yi = y + i * d;
            float* const sp = s.get();
            if (rate > 0) {
                for (int32_t j = 0; j < d; j++)
                    sp[j] = to_float(xi[j]) + to_float(bi[j]) * dropout.factor(uint32_t(i * d), j);
            } else {
                for (int32_t j = 0; j < d; j++) sp[j] = to_float(xi[j]) + to_float(bi[j]);
            }
            const Moments of = moments(sp, d, epsilon);
            for (int32_t j = 0; j < d; j++) {
                put(si[j], sp[j]);
                put(yi[j], (sp[j] - of.mean) * of.rstd * to_float(gain[j]) + to_float(bias[j]));
            }
            mean[i] = of.mean;
            rstd[i] = of.rstd;
        }
    }
}

template <class T>
static void add_norm_backward(const T* dy, const T* sum, const T* gain, const float* mean, const float* rstd, T* dx,
                              T* dbranch, float* dgain, float* dbias, int64_t n, int64_t d, float rate,
                              uint64_t seed) {
    ColumnSums sums(2 * d);
#pragma omp parallel
    {
        const Dropout dropout(seed, rate);
        std::unique_ptr<float[]> scratch(new float[2 * d]);
        float *normal = scratch.get(), *g = normal + d, *my_dgain = sums.mine(), *my_dbias = my_dgain + d;
#pragma omp for
        for (int64_t i = 0; i < n; i++) {
            const T *dyi = dy + i * d, *si = sum + i * d;
            T *dxi = dx + i * d, *dbi = dbranch + i * d;
            const float m = mean[i], r = rstd[i];
            float mean_g = 0, mean_gn = 0;
            for (int32_t j = 0; j < d; j++) {
                const float dyj = to_float(dyi[j]);
                normal[j] = (to_float(si[j]) - m) * r;
                g[j] = dyj * to_float(gain[j]);
                my_dgain[j] += dyj * normal[j];
                my_dbias[j] += dyj;
                mean_g += g[j];
                mean_gn += g[j] * normal[j];
            }
            mean_g /= d;
            mean_gn /= d;
            if (rate > 0) {
                for (int32_t j = 0; j < d; j++) {
                    const float ds = r * (g[j] - mean_g - normal[j] * mean_gn);
                    put(dxi[j], ds);
                    put(dbi[j], ds * dropout.factor(uint32_t(i * d), j));
                }
            } else {
                for (int32_t j = 0; j < d; j++) {
                    const float ds = r * (g[j] - mean_g - normal[j] * mean_gn);
                    put(dxi[j], ds);
                    put(dbi[j], ds);
                }
            }
        }
    }
    sums.add_to(dgain, 0, d);
    sums.add_to(dbias, d, d);
}

// ---------------------------------------------------------------------------------------------------------------------
// max(0, h + b), in place; and its backward pass.

template <class T>
static void bias_relu(T* h, const T* bias, int64_t n, int64_t d) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        for (int32_t j = 0; j < d; j++) {
            const float x = to_float(h[i * d + j]) + to_float(bias[j]);
            put(h[i * d + j], x < 0 ? 0 : x);  // NaN stays NaN
        }
}

template <class T>
static void bias_relu_backward(const T* dy, const T* y, T* dh, float* dbias, int64_t n, int64_t d) {
    ColumnSums sums(d);
#pragma omp parallel
    {
        float* const mine = sums.mine();
#pragma omp for
        for (int64_t i = 0; i < n; i++)
            for (int32_t j = 0; j < d; j++) {
                const float g = to_float(y[i * d + j]) > 0 ? to_float(dy[i * d + j]) : 0;
                put(dh[i * d + j], g);
                mine[j] += g;
            }
    }
    sums.add_to(dbias, 0, d);
}

// ---------------------------------------------------------------------------------------------------------------------
// dropout(table[id] · scale + positions[position]), and the gradient of the table, summed row by row in float.

template <class T>
static void embed(const int64_t* ids, const int64_t* places, const T* table, const T* positions, T* y, int64_t n,
                  int64_t d, float scale, float rate, uint64_t seed) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) {
        const Dropout dropout(seed, rate);
        const T *row = table + ids[i] * d, *position = positions + places[i] * d;
        for (int32_t j = 0; j < d; j++) {
            const float x = to_float(row[j]) * scale + to_float(position[j]);
            put(y[i * d + j], rate > 0 ? x * dropout.factor(uint32_t(i * d), j) : x);
        }
    }
}

template <class T>
static void embed_backward(const T* dy, const int64_t* ids, float* dtable, int64_t n, int64_t d, float scale,
                           float rate, uint64_t seed) {
#pragma omp parallel
    {
        const Dropout dropout(seed, rate);
        // Each thread owns the ids of one remainder, so that no two write to a row.
        const int64_t n_threads = omp_get_num_threads(), thread = omp_get_thread_num();
        for (int64_t i = 0; i < n; i++) {
            if (ids[i] % n_threads != thread) continue;
            float* row = dtable + ids[i] * d;
            for (int32_t j = 0; j < d; j++)
                row[j] += to_float(dy[i * d + j]) * scale * (rate > 0 ? dropout.factor(uint32_t(i * d), j) : 1.0f);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Turns logits into the gradient of the label-smoothed loss, in place: softmax - (1 - ε) at the target - ε / vocab.

template <class T>
static void smoothed_loss(T* logits, const int64_t* targets, float* loss, float* nll, int64_t n, int64_t vocab,
                          float epsilon) {
#pragma omp parallel
    {
        std::unique_ptr<float[]> scratch(new float[vocab]);
        float* const p = scratch.get();
#pragma omp for
        for (int64_t i = 0; i < n; i++) {
            T* const z = logits + i * vocab;
            float total = 0, all = 0;
            for (int32_t j = 0; j < vocab; j++) {
                p[j] = to_float(z[j]);
                all += p[j];
            }
            const float top = largest(p, vocab), at_target = p[targets[i]];
            for (int32_t j = 0; j < vocab; j++) {
                p[j] = exponential(p[j] - top);
                total += p[j];
            }
            const float inverse = 1.0f / total, rest = epsilon / vocab;
            const float at_target_grad = p[targets[i]] * inverse - rest - (1 - epsilon);
            for (int32_t j = 0; j < vocab; j++) put(z[j], p[j] * inverse - rest);
            put(z[targets[i]], at_target_grad);
            const float log_total = std::log(total) + top;
            nll[i] = log_total - at_target;
            loss[i] = (1 - epsilon) * nll[i] + epsilon * (log_total - all / vocab);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention of sentences that lie end to end: rows offsets[s] to offsets[s + 1] belong to sentence s. One thread takes
// one head of one sentence, whose matrices are small and stay in its cache, in float.

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
static void swap_axes(const float* from, int64_t ld_from, float* to, int64_t n, int64_t d) {
    const int64_t ld = whole_vectors(n);
    for (int64_t j = 0; j < d; j += W)
        for (int64_t i = 0; i < n; i += W) {
            Vec x[W];
            for (int64_t r = 0; r < W; r++) x[r] = i + r < n ? load(from + (i + r) * ld_from + j) : Vec{};
            swap_quarters<1>(x);
            swap_quarters<2>(x);
            swap_quarters<4>(x);
            swap_quarters<8>(x);
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

template <class T>
static void attend(const T* q, const T* k, const T* v, T* out, float* log_sums, const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(s.d_k));
    const int64_t kd = whole_vectors(s.d_k), vd = whole_vectors(s.d_v);
    const Dropout dropout(s.seed, s.rate);
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for schedule(dynamic, 16)
        for (int64_t pair = 0; pair < s.n_sentences * s.n_heads; pair++) {
            const auto [head, q0, nq, k0, nk] = s.place(pair);
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
                Vec tops = Vec{} - INFINITY, totals = {};
                for (int64_t j = 0; j < seen; j += W) tops = larger(tops, first_places(load(p + j), seen - j, -INFINITY));
                const float top = folded(tops, larger);
                for (int64_t j = 0; j < seen; j += W) {
                    const Vec e = first_places(exponential((load(p + j) - top) * scale), seen - j, 0);
                    store(e, p + j);
                    totals += e;
                }
                const float total = folded(totals, [](Vec a, Vec b) { return a + b; }), inverse = 1.0f / total;
                if (s.rate > 0) {
                    const uint32_t first = s.first_element(dropout, q0 + i, head);
                    for (int32_t j = 0; j < seen; j++) p[j] *= inverse * dropout.factor(first, j);
                } else {
                    for (int64_t j = 0; j < seen; j += W) store(load(p + j) * inverse, p + j);
                }
                for (int64_t j = seen; j < ld; j++) p[j] = 0;
                log_sums[(q0 + i) * s.n_heads + head] = top * scale + std::log(total);
            }
            product(P, ld, 1, V, vd, O, vd, nq, vd, nk);
            write_rows(O, out + q0 * s.n_heads * s.d_v + head * s.d_v, s.n_heads * s.d_v, nq, s.d_v, 1.0f);
        }
    }
}

template <class T>
static void attend_backward(const T* q, const T* k, const T* v, const T* out, const T* dout, const float* log_sums,
                            T* dq, T* dk, T* dv, const Shape& s) {
    const float scale = 1.0f / std::sqrt(float(s.d_k));
    const int64_t kd = whole_vectors(s.d_k), vd = whole_vectors(s.d_v), out_stride = s.n_heads * s.d_v;
    const Dropout dropout(s.seed, s.rate);
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for schedule(dynamic, 16)
        for (int64_t pair = 0; pair < s.n_sentences * s.n_heads; pair++) {
            const auto [head, q0, nq, k0, nk] = s.place(pair);
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
                const T* o = out + (q0 + i) * out_stride + head * s.d_v;
                const int64_t seen = s.causal ? i + 1 : nk;
                const float log_sum = log_sums[(q0 + i) * s.n_heads + head];
                float mean = 0;  // of dP under P: the same as dO · O
                for (int32_t j = 0; j < s.d_v; j++) mean += dO[i * vd + j] * to_float(o[j]);
                for (int64_t j = 0; j < seen; j += W)
                    store(first_places(exponential(load(p + j) * scale - log_sum), seen - j, 0), p + j);
                if (s.rate > 0) {
                    const uint32_t first = s.first_element(dropout, q0 + i, head);
                    for (int32_t j = 0; j < seen; j++) {
                        const float factor = dropout.factor(first, j);
                        dp[j] = p[j] * (dp[j] * factor - mean);
                        p[j] *= factor;
                    }
                } else {
                    for (int64_t j = 0; j < seen; j += W) store(load(p + j) * (load(dp + j) - mean), dp + j);
                }
                for (int64_t j = seen; j < ld; j++) p[j] = dp[j] = 0;
            }
            product(dP, ld, 1, K, kd, result, kd, nq, kd, nk);
            write_rows(result, dq + q0 * s.q_stride + head * s.d_k, s.q_stride, nq, s.d_k, scale);
            product(dP, 1, ld, Q, kd, result, kd, nk, kd, nq);
            write_rows(result, dk + k0 * s.k_stride + head * s.d_k, s.k_stride, nk, s.d_k, scale);
            product(P, 1, ld, dO, vd, result, vd, nk, vd, nq);
            write_rows(result, dv + k0 * s.v_stride + head * s.d_v, s.v_stride, nk, s.d_v, 1.0f);
        }
    }
}

#define EXPORT(T)                                                                                                      \
    void add_norm_##T(const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y, float* mean,            \
                      float* rstd, int64_t n, int64_t d, float rate, uint64_t seed, float epsilon) {                   \
        add_norm(x, branch, gain, bias, sum, y, mean, rstd, n, d, rate, seed, epsilon);                                \
    }                                                                                                                  \
    void add_norm_backward_##T(const T* dy, const T* sum, const T* gain, const float* mean, const float* rstd, T* dx,  \
                               T* dbranch, float* dgain, float* dbias, int64_t n, int64_t d, float rate,               \
                               uint64_t seed) {                                                                        \
        add_norm_backward(dy, sum, gain, mean, rstd, dx, dbranch, dgain, dbias, n, d, rate, seed);                     \
    }                                                                                                                  \
    void bias_relu_##T(T* h, const T* bias, int64_t n, int64_t d) { bias_relu(h, bias, n, d); }                        \
    void bias_relu_backward_##T(const T* dy, const T* y, T* dh, float* dbias, int64_t n, int64_t d) {                  \
        bias_relu_backward(dy, y, dh, dbias, n, d);                                                                    \
    }                                                                                                                  \
    void embed_##T(const int64_t* ids, const int64_t* places, const T* table, const T* positions, T* y, int64_t n,     \
                   int64_t d, float scale, float rate, uint64_t seed) {                                                \
        embed(ids, places, table, positions, y, n, d, scale, rate, seed);                                              \
    }                                                                                                                  \
    void embed_backward_##T(const T* dy, const int64_t* ids, float* dtable, int64_t n, int64_t d, float scale,         \
                            float rate, uint64_t seed) {                                                               \
        embed_backward(dy, ids, dtable, n, d, scale, rate, seed);                                                      \
    }                                                                                                                  \
    void smoothed_loss_##T(T* logits, const int64_t* targets, float* loss, float* nll, int64_t n, int64_t vocab,       \
                           float epsilon) {                                                                            \
        smoothed_loss(logits, targets, loss, nll, n, vocab, epsilon);                                                  \
    }                                                                                                                  \
    void attend_##T(const T* q, const T* k, const T* v, T* out, float* log_sums, const Shape* s) {                     \
        attend(q, k, v, out, log_sums, *s);                                                                            \
    }                                                                                                                  \
    void attend_backward_##T(const T* q, const T* k, const T* v, const T* out, const T* dout, const float* log_sums,   \
                             T* dq, T* dk, T* dv, const Shape* s) {                                                    \
        attend_backward(q, k, v, out, dout, log_sums, dq, dk, dv, *s);                                                 \
    }

extern "C" {
EXPORT(float)
EXPORT(bf16)
}
