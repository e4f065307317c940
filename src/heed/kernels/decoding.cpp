// The passes of a search's step: products with packed weights, attention to what each hypothesis has written and to its
// source, the best continuations. A row is a hypothesis; `beam` rows in a row belong to a sentence.
//
// What is computed for a row never depends on the other rows, to the last bit: sums over it are taken in one order,
// whatever lies beside it and however many threads share the work.

#include "common.h"

// ---------------------------------------------------------------------------------------------------------------------
// y = x · Wᵀ + bias in float. W lies in panels of 32 outputs each, (panel, d_in, 32), filled up with zeros.

constexpr int64_t PANEL = 2 * W;

template <int ROWS>
static inline int64_t panel_rows(int64_t i, const float* x, const float* panel, const float* bias, float* y, int64_t n,
                                 int64_t d_in, int64_t d_out, int64_t width) {
    float tile[ROWS * PANEL];
    for (; i + ROWS <= n; i += ROWS) {
        block<ROWS, 2>(x + i * d_in, d_in, 1, panel, PANEL, tile, PANEL, d_in);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t j = 0; j < width; j++)
                y[(i + r) * d_out + j] = tile[r * PANEL + j] + (bias ? bias[j] : 0.0f);
    }
    return i;
}

static void panel_product(const float* x, const float* panels, const float* bias, float* y, int64_t n, int64_t d_in,
                          int64_t d_out) {
    const int64_t n_panels = (d_out + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t p = 0; p < n_panels; p++) {
        const float *panel = panels + p * d_in * PANEL, *b = bias ? bias + p * PANEL : nullptr;
        const int64_t width = std::min(PANEL, d_out - p * PANEL);
        float* to = y + p * PANEL;
        int64_t i = panel_rows<12>(0, x, panel, b, to, n, d_in, d_out, width);
        i = panel_rows<4>(i, x, panel, b, to, n, d_in, d_out, width);
        panel_rows<1>(i, x, panel, b, to, n, d_in, d_out, width);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Products in 8-bit integers: each row of x in steps of its largest number / 127; and back from the sums.

static void quantize(const float* x, int8_t* q, float* steps, int64_t n, int64_t d) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++) {
        float most = 0;
        for (int32_t j = 0; j < d; j++) most = std::max(most, std::fabs(x[i * d + j]));
        const float inverse = most > 0 ? 127.0f / most : 0.0f;
        for (int32_t j = 0; j < d; j++) q[i * d + j] = int8_t(int32_t(std::rint(x[i * d + j] * inverse)));
        steps[i] = most / 127.0f;
    }
}

static void dequantize(const int32_t* sums, const float* steps, const float* weight_steps, const float* bias, float* y,
                       int64_t n, int64_t d) {
#pragma omp parallel for
    for (int64_t i = 0; i < n; i++)
        for (int32_t j = 0; j < d; j++)
            y[i * d + j] = float(sums[i * d + j]) * (steps[i] * weight_steps[j]) + (bias ? bias[j] : 0.0f);
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention of one query a row to keys and values at places of their own.

// softmax(q · keys / √d_k) · values; key(t) and value(t) are the t-th one's addresses.
template <class T, class Key, class Value>
static inline void attend_one(const T* q, Key key, Value value, int64_t n, int64_t d_k, int64_t d_v, float* scratch,
                              T* out) {
    float *query = scratch, *p = query + d_k, *sum = p + n;
    const float scale = 1.0f / std::sqrt(float(d_k));
    for (int32_t j = 0; j < d_k; j++) query[j] = to_float(q[j]);
    for (int64_t t = 0; t < n; t++) {
        const T* k = key(t);
        float dot = 0;
        for (int32_t j = 0; j < d_k; j++) dot += query[j] * to_float(k[j]);
        p[t] = dot;
    }
    const float top = largest(p, n);
    float total = 0;
    for (int32_t t = 0; t < n; t++) {
        p[t] = exponential((p[t] - top) * scale);
        total += p[t];
    }
    const float inverse = 1.0f / total;
    for (int32_t j = 0; j < d_v; j++) sum[j] = 0;
    for (int64_t t = 0; t < n; t++) {
        const T* v = value(t);
        const float weight = p[t] * inverse;
        for (int32_t j = 0; j < d_v; j++) sum[j] += weight * to_float(v[j]);
    }
    for (int32_t j = 0; j < d_v; j++) put(out[j], sum[j]);
}

struct Heads {
    int64_t n, d_k, d_v;
    int64_t keys() const { return n * d_k; }
    int64_t values() const { return n * d_v; }
};

// Self-attention. qkv: (row, Q | K | V of all heads). The new keys and values go to cache[slot, length], where the cache
// is (slot, position, K | V); ancestors[slot, position] is the slot in which a row's ancestor wrote at that position, so
// that reordering a beam moves no key.
template <class T>
static void attend_to_past(const T* qkv, T* cache, int32_t* ancestors, const int64_t* slots, const int64_t* lengths,
                           T* out, int64_t n, int64_t capacity, Heads heads) {
    const int64_t kv = heads.keys() + heads.values(), stride = heads.keys() + kv;
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for
        for (int64_t i = 0; i < n; i++) {
            const int64_t slot = slots[i], length = lengths[i];
            int32_t* const mine = ancestors + slot * capacity;
            memcpy(cache + (slot * capacity + length) * kv, qkv + i * stride + heads.keys(), size_t(kv) * sizeof(T));
            mine[length] = int32_t(slot);
            float* const memory = scratch.take(heads.d_k + length + 1 + heads.d_v);
            for (int64_t h = 0; h < heads.n; h++) {
                const auto at = [&](int64_t t) { return cache + (mine[t] * capacity + t) * kv; };
                attend_one(
                    qkv + i * stride + h * heads.d_k, [&](int64_t t) { return at(t) + h * heads.d_k; },
                    [&](int64_t t) { return at(t) + heads.keys() + h * heads.d_v; }, length + 1, heads.d_k, heads.d_v,
                    memory, out + i * heads.values() + h * heads.d_v);
            }
        }
    }
}

// Attention to the source. memories[s]: the address of sentence s's (src, K | V of all heads).
template <class T>
static void attend_to_source(const T* q, const int64_t* memories, const int64_t* src_lengths, T* out, int64_t n,
                             int64_t beam, Heads heads) {
    const int64_t kv = heads.keys() + heads.values();
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for
        for (int64_t i = 0; i < n; i++) {
            const T* const memory = reinterpret_cast<const T*>(memories[i / beam]);
            const int64_t length = src_lengths[i / beam];
            float* const space = scratch.take(heads.d_k + length + heads.d_v);
            for (int64_t h = 0; h < heads.n; h++)
                attend_one(
                    q + i * heads.keys() + h * heads.d_k,
                    [&](int64_t t) { return memory + t * kv + h * heads.d_k; },
                    [&](int64_t t) { return memory + t * kv + heads.keys() + h * heads.d_v; }, length, heads.d_k,
                    heads.d_v, space, out + i * heads.values() + h * heads.d_v);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The k best continuations of each sentence, best first; of equals the one of the earlier row, then of the smaller id.

struct Candidate {
    double value;
    int64_t index;
};

// Puts a candidate into its place among the `size` best so far, of `most`. Returns how many there are now.
static inline int64_t insert(Candidate* best, int64_t size, int64_t most, Candidate candidate) {
    int64_t at = size;
    while (at > 0 && candidate.value > best[at - 1].value) at--;
    if (at == most) return size;
    const int64_t last = std::min(size, most - 1);
    for (int64_t i = last; i > at; i--) best[i] = best[i - 1];
    best[at] = candidate;
    return last + 1;
}

// logits: (row, vocab); log_probs: each row's so far. never: by id, whether it may not be chosen. may_end: by sentence,
// whether eos may. required: by row, the only choice, or -1. index: row in its sentence · vocab + id; where fewer than k
// exist, value is -infinity.
template <class T>
static void best_continuations(const T* logits, const double* log_probs, const int64_t* required, const uint8_t* never,
                               const uint8_t* may_end, double* values, int64_t* indices, int64_t n_sentences,
                               int64_t beam, int64_t vocab, int64_t eos, int64_t k) {
    const int64_t n = n_sentences * beam, piece = 64;
    std::unique_ptr<Candidate[]> all(new Candidate[size_t(n * k)]);
    std::unique_ptr<int64_t[]> sizes(new int64_t[size_t(n)]());
#pragma omp parallel
    {
        Scratch scratch;
        float* const z = scratch.take(vocab);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++) {
            const double so_far = log_probs[i];
            if (so_far == -INFINITY) continue;
            const T* const row = logits + i * vocab;
            for (int32_t j = 0; j < vocab; j++) z[j] = to_float(row[j]);
            const float top = largest(z, vocab);
            float total = 0;
            for (int32_t j = 0; j < vocab; j++) total += exponential(z[j] - top);
            const double log_total = double(top) + std::log(double(total));
            Candidate* const best = all.get() + i * k;
            const int64_t offset = i % beam * vocab;
            int64_t size = 0;
            const int64_t first = required[i] < 0 ? 0 : required[i], end = required[i] < 0 ? vocab : first + 1;
            for (int64_t start = first; start < end; start += piece) {
                const int64_t stop = std::min(start + piece, end);
                if (size == k && !(so_far + (largest(z + start, stop - start) - log_total) > best[k - 1].value))
                    continue;
                for (int64_t j = start; j < stop; j++)
                    if (!never[j] && (j != eos || may_end[i / beam]))
                        size = insert(best, size, k, {so_far + (z[j] - log_total), offset + j});
            }
            sizes[i] = size;
        }
    }
    for (int64_t s = 0; s < n_sentences; s++) {
        std::unique_ptr<Candidate[]> best(new Candidate[size_t(k)]);
        int64_t size = 0;
        for (int64_t i = s * beam; i < (s + 1) * beam; i++)
            for (int64_t c = 0; c < sizes[i]; c++) size = insert(best.get(), size, k, all[i * k + c]);
        for (int64_t c = 0; c < k; c++) {
            values[s * k + c] = c < size ? best[c].value : -INFINITY;
            indices[s * k + c] = c < size ? best[c].index : 0;
        }
    }
}

#define EXPORT(T)                                                                                                      \
    void attend_to_past_##T(const T* qkv, T* cache, int32_t* ancestors, const int64_t* slots, const int64_t* lengths,  \
                            T* out, int64_t n, int64_t capacity, int64_t n_heads, int64_t d_k, int64_t d_v) {          \
        attend_to_past(qkv, cache, ancestors, slots, lengths, out, n, capacity, {n_heads, d_k, d_v});                  \
    }                                                                                                                  \
    void attend_to_source_##T(const T* q, const int64_t* memories, const int64_t* src_lengths, T* out, int64_t n,      \
                              int64_t beam, int64_t n_heads, int64_t d_k, int64_t d_v) {                               \
        attend_to_source(q, memories, src_lengths, out, n, beam, {n_heads, d_k, d_v});                                 \
    }                                                                                                                  \
    void best_continuations_##T(const T* logits, const double* log_probs, const int64_t* required,                     \
                                const uint8_t* never, const uint8_t* may_end, double* values, int64_t* indices,        \
                                int64_t n_sentences, int64_t beam, int64_t vocab, int64_t eos, int64_t k) {            \
        best_continuations(logits, log_probs, required, never, may_end, values, indices, n_sentences, beam, vocab,     \
                           eos, k);                                                                                    \
    }

extern "C" {
EXPORT(float)
EXPORT(bf16)
void panel_product_float(const float* x, const float* panels, const float* bias, float* y, int64_t n, int64_t d_in,
                         int64_t d_out) {
    panel_product(x, panels, bias, y, n, d_in, d_out);
}
void quantize_float(const float* x, int8_t* q, float* steps, int64_t n, int64_t d) { quantize(x, q, steps, n, d); }
void dequantize_float(const int32_t* sums, const float* steps, const float* weight_steps, const float* bias, float* y,
                      int64_t n, int64_t d) {
    dequantize(sums, steps, weight_steps, bias, y, n, d);
}
}
