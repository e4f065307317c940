// The parts of a training step other than its large matrix products: attention within packed sequences, dropout with
// residual and layer normalization, ReLU with bias, embeddings with positions, the loss.
//
// Rows are tokens. The same call gives the same bits, however many threads there are and whichever takes which rows.

#include "optimizer.h"
#include "packed_attention.h"

namespace heed {

// Column sums over rows that any thread takes: each piece of the rows has sums of its own, which are added in the order
// of the pieces. How many rows a piece has depends on n_rows alone.
struct ColumnSums {
    static constexpr int64_t MOST_PIECES = 32, LEAST_ROWS = 16;
    const int64_t n_columns, n_rows, piece_rows, n_pieces;
    const Aligned<float> sums;  // (piece, column)
    ColumnSums(int64_t columns, int64_t rows)
        : n_columns(columns),
          n_rows(rows),
          piece_rows(std::max(LEAST_ROWS, (rows + MOST_PIECES - 1) / MOST_PIECES)),
          n_pieces((rows + piece_rows - 1) / piece_rows),
          sums(aligned<float>(n_pieces * columns)) {}

    // run(i, sums) for each row i, in all threads, with the sums that it adds to.
    template <class Run>
    void for_rows(ThreadTeam& team, Run run) const {
        team.share_last(n_pieces, 1, [&](int64_t piece) {
            float* const mine = sums.get() + piece * n_columns;
            std::fill_n(mine, n_columns, 0.0f);
            for (int64_t i = piece * piece_rows; i < std::min(n_rows, (piece + 1) * piece_rows); i++) run(i, mine);
        });
    }
    void add_to(float* total, int64_t first, int64_t n) const {
        for (int64_t p = 0; p < n_pieces; p++)
            for (int64_t j = 0; j < n; j++) total[j] += sums[p * n_columns + first + j];
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// sum = x + dropout(branch), y = LayerNorm(sum) (section 5.4). Mean and 1 / deviation are kept for the backward pass,
// which normalizes the sum again. With pre-norm the sum is used as well as y, and so has a gradient of its own, dsum.

template <class T>
static void add_norm(const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y, float* mean, float* rstd,
                     int64_t n, int64_t d, float rate, uint64_t seed, float epsilon) {
    const Dropout dropout(seed, rate);
    parallel([=](ThreadTeam& team) {
        Scratch scratch;
        float* const s = scratch.take(whole_vectors(d));
        team.split_last(n, [=](int64_t i) {
            const T *xi = x + i * d, *bi = branch + i * d;
            T *si = sum + i * d, *yi = y + i * d;
            for (int64_t j = 0; j < d; j += LANES) {
                const Floats b = load_first(bi + j, d - j);
                const Floats kept = rate > 0 ? b * dropout.factors(uint32_t(i * d), j) : b;
                store(load_first(xi + j, d - j) + kept, s + j);
            }
            const Moments of = moments(s, d, epsilon);
            for (int64_t j = 0; j < d; j += LANES) {
                const Floats normal = (load(s + j) - of.mean) * of.rstd;
                store_first(load(s + j), si + j, d - j);
                store_first(normal * load_first(gain + j, d - j) + load_first(bias + j, d - j), yi + j, d - j);
            }
            mean[i] = of.mean;
            rstd[i] = of.rstd;
        });
    });
}

template <bool WITH_DSUM, class T>
static void add_norm_backward(const T* dy, const T* dsum, const T* sum, const T* gain, const float* mean,
                              const float* rstd, T* dx, T* dbranch, float* dgain, float* dbias, int64_t n, int64_t d,
                              float rate, uint64_t seed) {
    const Dropout dropout(seed, rate);
    const int64_t whole = whole_vectors(d);
    const ColumnSums sums(2 * whole, n);
    parallel([=, &sums](ThreadTeam& team) {
        Scratch scratch;
        float *const normal = scratch.take(2 * whole), *const g = normal + whole;
        sums.for_rows(team, [=](int64_t i, float* my_dgain) {
            const T *dyi = dy + i * d, *si = sum + i * d;
            T *dxi = dx + i * d, *dbi = dbranch + i * d;
            float* const my_dbias = my_dgain + whole;
            const float m = mean[i], r = rstd[i];
            Floats totals_g = {}, totals_gn = {};
            for (int64_t j = 0; j < d; j += LANES) {  // behind the row's end dy is 0
                const Floats dyj = load_first(dyi + j, d - j), nj = (load_first(si + j, d - j) - m) * r;
                const Floats gj = dyj * load_first(gain + j, d - j);
                store(nj, normal + j);
                store(gj, g + j);
                store(load(my_dgain + j) + dyj * nj, my_dgain + j);
                store(load(my_dbias + j) + dyj, my_dbias + j);
                totals_g += gj;
                totals_gn += gj * nj;
            }
            const float mean_g = total(totals_g) / d, mean_gn = total(totals_gn) / d;
            for (int64_t j = 0; j < d; j += LANES) {
                Floats ds = r * (load(g + j) - mean_g - load(normal + j) * mean_gn);
                if (WITH_DSUM) ds += load_first(dsum + i * d + j, d - j);
                store_first(ds, dxi + j, d - j);
                store_first(rate > 0 ? ds * dropout.factors(uint32_t(i * d), j) : ds, dbi + j, d - j);
            }
        });
    });
    sums.add_to(dgain, 0, d);
    sums.add_to(dbias, whole, d);
}

// ---------------------------------------------------------------------------------------------------------------------
// max(0, h + bias), in place; and its backward pass.

template <class T>
static void bias_relu(T* h, const T* bias, int64_t n, int64_t d) {
    parallel([=](ThreadTeam& team) {
        team.split_last(n, [&](int64_t i) {
            for (int32_t j = 0; j < d; j++) {
                const float x = to_float(h[i * d + j]) + to_float(bias[j]);
                put(x < 0 ? 0 : x, h[i * d + j]);  // NaN stays NaN
            }
        });
    });
}

template <class T>
static void bias_relu_backward(const T* dy, const T* y, T* dh, float* dbias, int64_t n, int64_t d) {
    const ColumnSums sums(d, n);
    parallel([=, &sums](ThreadTeam& team) {
        sums.for_rows(team, [&](int64_t i, float* mine) {
            for (int32_t j = 0; j < d; j++) {
                const float g = to_float(y[i * d + j]) > 0 ? to_float(dy[i * d + j]) : 0;
                put(g, dh[i * d + j]);
                mine[j] += g;
            }
        });
    });
    sums.add_to(dbias, 0, d);
}

// ---------------------------------------------------------------------------------------------------------------------
// dropout(table[id] · scale + positions[place]), or of the position alone where the id is -1; and the gradient of the
// table, summed row by row in float.

template <class T>
static void embed(const int64_t* ids, const int64_t* places, const T* table, const T* positions, T* y, int64_t n,
                  int64_t d, float scale, float rate, uint64_t seed) {
    const Dropout dropout(seed, rate);
    parallel([=](ThreadTeam& team) {
        team.split_last(n, [&](int64_t i) {
            const T *row = table + std::max<int64_t>(ids[i], 0) * d, *position = positions + places[i] * d;
            const float times = ids[i] < 0 ? 0 : scale;
            for (int32_t j = 0; j < d; j++) {
                const float x = to_float(row[j]) * times + to_float(position[j]);
                put(rate > 0 ? x * dropout.factor(uint32_t(i * d), j) : x, y[i * d + j]);
            }
        });
    });
}

template <class T>
static void embed_backward(const T* dy, const int64_t* ids, float* dtable, int64_t n, int64_t d, float scale,
                           float rate, uint64_t seed) {
    const Dropout dropout(seed, rate);
    parallel([=](ThreadTeam& team) {
        int64_t n_pieces = 1;
        while (team.size > 1 && n_pieces < ThreadTeam::PIECES_PER_THREAD * team.size) n_pieces *= 2;
        team.share_last(n_pieces, 1, [&](int64_t piece) {
            for (int64_t i = 0; i < n; i++) {  // a piece has the ids of one remainder: no two write to the same row
                if (ids[i] < 0 || (ids[i] & (n_pieces - 1)) != piece) continue;
                float* row = dtable + ids[i] * d;
                for (int32_t j = 0; j < d; j++)
                    row[j] += to_float(dy[i * d + j]) * scale * (rate > 0 ? dropout.factor(uint32_t(i * d), j) : 1.0f);
            }
        });
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// Turns logits into the gradient of the label-smoothed loss, in place: softmax - (1 - ε) at the target - ε / vocab.

template <class T>
static void smoothed_loss(T* logits, const int64_t* targets, float* loss, float* nll, int64_t n, int64_t vocab,
                          float epsilon) {
    parallel([=](ThreadTeam& team) {
        Scratch scratch;
        float* const p = scratch.take(vocab);
        team.split_last(n, [&](int64_t i) {
            T* const z = logits + i * vocab;
            float all = 0;
            for (int32_t j = 0; j < vocab; j++) {
                p[j] = to_float(z[j]);
                all += p[j];
            }
            const float top = largest(p, vocab), at_target = p[targets[i]];
            const float total = exponentials(p, top, vocab);
            const float inverse = 1.0f / total, rest = epsilon / vocab;
            const float at_target_grad = p[targets[i]] * inverse - rest - (1 - epsilon);
            for (int32_t j = 0; j < vocab; j++) put(p[j] * inverse - rest, z[j]);
            put(at_target_grad, z[targets[i]]);
            const float log_total = std::log(total) + top;
            nll[i] = log_total - at_target;
            loss[i] = (1 - epsilon) * nll[i] + epsilon * (log_total - all / vocab);
        });
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// The same of two passes, whose logits of a token are rows i and n + i, and α / 4 · (KL(P || Q) + KL(Q || P)): R-Drop,
// as training/loss.py defines it. With the difference d of a token's two rows of logits, which is log P / Q but for a
// constant, the sum of both divergences is E_P d - E_Q d, and its gradient by P's logits P · (d - E_P d) + P - Q.

template <class T>
static void consistent_loss(T* logits, const int64_t* targets, float* loss, float* nll, int64_t n, int64_t vocab,
                            float epsilon, float alpha) {
    parallel([=](ThreadTeam& team) {
        Scratch scratch;
        float *const p = scratch.take(3 * vocab), *const q = p + vocab, *const d = q + vocab;
        team.split_last(n, [&](int64_t i) {
            T *const z = logits + i * vocab, *const w = logits + (n + i) * vocab;
            float all = 0;
            for (int32_t j = 0; j < vocab; j++) {
                p[j] = to_float(z[j]);
                q[j] = to_float(w[j]);
                all += p[j] + q[j];
            }
            const float top_p = largest(p, vocab), top_q = largest(q, vocab), at_target = p[targets[i]] + q[targets[i]];
            const float shift = top_p - top_q;  // takes most of the constant from d
            float sum_p = 0, sum_q = 0;
            for (int32_t j = 0; j < vocab; j++) d[j] = p[j] - q[j] - shift;
            const float total_p = exponentials(p, top_p, vocab), total_q = exponentials(q, top_q, vocab);
            for (int32_t j = 0; j < vocab; j++) {
                sum_p += p[j] * d[j];
                sum_q += q[j] * d[j];
            }
            const float inverse_p = 1.0f / total_p, inverse_q = 1.0f / total_q;
            const float mean_p = sum_p * inverse_p, mean_q = sum_q * inverse_q;
            const float rest = 0.5f * epsilon / vocab, weight = 0.25f * alpha;
            const auto grads = [&](int64_t j, float& by_z, float& by_w) {
                const float a = p[j] * inverse_p, b = q[j] * inverse_q;
                by_z = 0.5f * a - rest + weight * (a * (d[j] - mean_p) + a - b);
                by_w = 0.5f * b - rest + weight * (b * (mean_q - d[j]) + b - a);
            };
            float by_z, by_w, z_at_target, w_at_target;
            grads(targets[i], z_at_target, w_at_target);
            for (int32_t j = 0; j < vocab; j++) {
                grads(j, by_z, by_w);
                put(by_z, z[j]);
                put(by_w, w[j]);
            }
            put(z_at_target - 0.5f * (1 - epsilon), z[targets[i]]);
            put(w_at_target - 0.5f * (1 - epsilon), w[targets[i]]);
            const float log_total = std::log(total_p) + top_p + std::log(total_q) + top_q;  // of both
            nll[i] = 0.5f * (log_total - at_target);
            loss[i] = (1 - epsilon) * nll[i] + epsilon * 0.5f * (log_total - all / vocab) + weight * (mean_p - mean_q);
        });
    });
}

}  // namespace heed

extern "C" {
#define HEED_DEFINE(T, NAME)                                                                                           \
 heed::Status add_norm_##NAME(const T* x, const T* branch, const T* gain, const T* bias, T* sum, T* y, float* mean,    \
                              float* rstd, int64_t n, int64_t d, float rate, uint64_t seed, float epsilon) {           \
  return heed::status_of(                                                                                              \
      [&] { heed::add_norm(x, branch, gain, bias, sum, y, mean, rstd, n, d, rate, seed, epsilon); });                  \
 }                                                                                                                     \
 heed::Status add_norm_backward_##NAME(const T* dy, const T* dsum, const T* sum, const T* gain, const float* mean,     \
                                       const float* rstd, T* dx, T* dbranch, float* dgain, float* dbias, int64_t n,    \
                                       int64_t d, float rate, uint64_t seed) {                                         \
  return heed::status_of([&] {                                                                                         \
const auto run = dsum ? heed::add_norm_backward<true, T> : heed::add_norm_backward<false, T>;                             \
run(dy, dsum, sum, gain, mean, rstd, dx, dbranch, dgain, dbias, n, d, rate, seed);                                        \
  });                                                                                                                  \
 }                                                                                                                     \
 heed::Status bias_relu_##NAME(T* h, const T* bias, int64_t n, int64_t d) {                                            \
  return heed::status_of([&] { heed::bias_relu(h, bias, n, d); });                                                     \
 }                                                                                                                     \
 heed::Status bias_relu_backward_##NAME(const T* dy, const T* y, T* dh, float* dbias, int64_t n, int64_t d) {          \
  return heed::status_of([&] { heed::bias_relu_backward(dy, y, dh, dbias, n, d); });                                   \
 }                                                                                                                     \
 heed::Status embed_##NAME(const int64_t* ids, const int64_t* places, const T* table, const T* positions, T* y,        \
                           int64_t n, int64_t d, float scale, float rate, uint64_t seed) {                             \
  return heed::status_of([&] { heed::embed(ids, places, table, positions, y, n, d, scale, rate, seed); });             \
 }                                                                                                                     \
 heed::Status embed_backward_##NAME(const T* dy, const int64_t* ids, float* dtable, int64_t n, int64_t d, float scale, \
                                    float rate, uint64_t seed) {                                                       \
  return heed::status_of([&] { heed::embed_backward(dy, ids, dtable, n, d, scale, rate, seed); });                     \
 }                                                                                                                     \
 heed::Status smoothed_loss_##NAME(T* logits, const int64_t* targets, float* loss, float* nll, int64_t n,              \
                                   int64_t vocab, float epsilon) {                                                     \
  return heed::status_of([&] { heed::smoothed_loss(logits, targets, loss, nll, n, vocab, epsilon); });                 \
 }                                                                                                                     \
 heed::Status consistent_loss_##NAME(T* logits, const int64_t* targets, float* loss, float* nll, int64_t n,            \
                                     int64_t vocab, float epsilon, float alpha) {                                      \
  return heed::status_of([&] { heed::consistent_loss(logits, targets, loss, nll, n, vocab, epsilon, alpha); });        \
 }                                                                                                                     \
 heed::Status attend_##NAME(const T* q, const T* k, const T* v, T* out, const heed::Shape* s) {                        \
  return heed::status_of([&] { heed::attend(q, k, v, out, *s); });                                                     \
 }                                                                                                                     \
 heed::Status attend_backward_##NAME(const T* q, const T* k, const T* v, const T* dout, T* dq, T* dk, T* dv,           \
                                     const heed::Shape* s) {                                                           \
  return heed::status_of([&] { heed::attend_backward(q, k, v, dout, dq, dk, dv, *s); });                               \
 }

HEED_DEFINE(float, float)
HEED_DEFINE(heed::bf16, bf16)
#undef HEED_DEFINE

void add_gradient(const heed::bf16* x, float* sum, int64_t n) { heed::add_gradient(x, sum, n); }
void adam_step(float* weights, float* means, float* squares, float* gradients, heed::bf16* copy, int64_t n, float rate,
               float root, float beta1, float beta2, float epsilon) {
    heed::adam_step(weights, means, squares, gradients, copy, n, rate, root, beta1, beta2, epsilon);
}
int64_t first_outside(const int64_t* numbers, int64_t n, int64_t least, int64_t end) {
    for (int64_t i = 0; i < n; i++)
        if (numbers[i] < least || numbers[i] >= end) return i;
    return -1;
}
}
