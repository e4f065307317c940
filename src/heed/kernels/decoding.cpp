// The passes of a search's step: products with packed weights, attention to what each hypothesis has written and to its
// source, the best continuations. A row is a hypothesis; `beam` rows in a row belong to a sentence.
//
// What is computed for a row never depends on the other rows, to the last bit: sums over it are taken in one order,
// whatever lies beside it and however many threads share the work.

#include "common.h"

#include <utility>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

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
// The k best continuations of each sentence, best first; of equals the one of the earlier row, then of the smaller id.
// Logits are taken in piece by piece of the vocabulary, by any thread, and need not exist together.

struct Candidate {
    double value;
    int64_t index;
    bool before(const Candidate& other) const {
        return value > other.value || (value == other.value && index < other.index);
    }
};

// Puts a candidate into its place among the `size` best so far, of `most`. Returns how many there are now.
static inline int64_t insert(Candidate* best, int64_t size, int64_t most, Candidate candidate) {
    int64_t at = size;
    while (at > 0 && candidate.before(best[at - 1])) at--;
    if (at == most) return size;
    const int64_t last = std::min(size, most - 1);
    for (int64_t i = last; i > at; i--) best[i] = best[i - 1];
    best[at] = candidate;
    return last + 1;
}

struct Continuations {
    // Each row's log-probability so far; its only choice, or -1. By id, whether it is never chosen. By sentence, whether
    // eos may be.
    const double* log_probs;
    const int64_t* required;
    const uint8_t *never, *may_end;
    int64_t n_sentences, beam, vocab, eos, k;

    struct Sum {  // of e^(logit - top)
        float top, total;
    };
    int64_t n_pieces = 0, n_rows = 0;
    std::unique_ptr<Sum[]> sums;         // (row, piece)
    std::unique_ptr<Candidate[]> best;   // (thread, row, k), by logits
    std::unique_ptr<int64_t[]> sizes;    // (thread, row)

    void begin(int64_t pieces) {
        n_pieces = pieces;
        n_rows = n_sentences * beam;
        const size_t lists = size_t(n_rows * omp_get_max_threads());
        sums.reset(new Sum[size_t(n_rows * n_pieces)]);
        best.reset(new Candidate[lists * size_t(k)]);
        sizes.reset(new int64_t[lists]());
    }

    // The logits z of `count` ids from `first` on; a thread takes pieces in their order.
    void take(int64_t row, int64_t piece, const float* z, int64_t first, int64_t count) {
        const float top = largest(z, count);
        float total = 0;
        for (int32_t j = 0; j < count; j++) total += exponential(z[j] - top);
        sums[row * n_pieces + piece] = {top, total};
        if (log_probs[row] == -INFINITY) return;
        const int64_t list = omp_get_thread_num() * n_rows + row, only = required[row];
        const bool ends = may_end[row / beam];
        Candidate* const mine = best.get() + list * k;
        int64_t size = sizes[list], from = 0, to = count;
        if (only >= 0) {
            from = std::max(int64_t(0), only - first);
            to = std::min(count, only - first + 1);
        }
        for (int64_t start = from; start < to; start += 64) {
            const int64_t stop = std::min(start + 64, to);
            if (size == k && !(largest(z + start, stop - start) > mine[k - 1].value)) continue;
            for (int64_t j = start; j < stop; j++) {
                const int64_t id = first + j;
                if (!never[id] && (id != eos || ends)) size = insert(mine, size, k, {z[j], row % beam * vocab + id});
            }
        }
        sizes[list] = size;
    }

    // index: row in its sentence · vocab + id; where fewer than k exist, value is -infinity.
    void finish(double* values, int64_t* indices) const {
        std::unique_ptr<Candidate[]> chosen(new Candidate[size_t(k)]);
        for (int64_t s = 0; s < n_sentences; s++) {
            int64_t size = 0;
            for (int64_t row = s * beam; row < (s + 1) * beam; row++) {
                const Sum* const mine = sums.get() + row * n_pieces;
                float top = mine[0].top;
                for (int64_t p = 1; p < n_pieces; p++) top = std::max(top, mine[p].top);
                double total = 0;
                for (int64_t p = 0; p < n_pieces; p++) total += mine[p].total * double(exponential(mine[p].top - top));
                const double log_total = top + std::log(total);
                for (int64_t t = 0; t < omp_get_max_threads(); t++) {
                    const int64_t list = t * n_rows + row;
                    for (int64_t c = 0; c < sizes[list]; c++) {
                        const Candidate candidate = best[list * k + c];
                        size = insert(chosen.get(), size, k,
                                      {log_probs[row] + (candidate.value - log_total), candidate.index});
                    }
                }
            }
            for (int64_t c = 0; c < k; c++) {
                values[s * k + c] = c < size ? chosen[c].value : -INFINITY;
                indices[s * k + c] = c < size ? chosen[c].index : 0;
            }
        }
    }
};

template <class T>
static void best_continuations(const T* logits, Continuations& wanted, double* values, int64_t* indices) {
    const int64_t vocab = wanted.vocab, n = wanted.n_sentences * wanted.beam;
    wanted.begin(1);
#pragma omp parallel
    {
        Scratch scratch;
        float* const z = scratch.take(vocab);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++) {
            for (int32_t j = 0; j < vocab; j++) z[j] = to_float(logits[i * vocab + j]);
            wanted.take(i, 0, z, 0, vocab);
        }
    }
    wanted.finish(values, indices);
}

// ---------------------------------------------------------------------------------------------------------------------
// y = x · Wᵀ + bias in 8-bit integers, ReLU behind it if asked for: each row of x in steps of its largest number / 127,
// W in steps of its own by outputs. The instruction multiplies unsigned with signed numbers, so x carries 128 too much,
// which `offsets`, -128 times the sum of an output's weights, takes off. W lies in panels of 32 outputs, (panel,
// d_in / 4, 32, 4), filled up with zeros.

struct Int8Panel {
    const int8_t* weights;
    const int32_t* offsets;
    const float *steps, *bias;
    int64_t d_in, width;
    bool relu;
};

struct Int8Weight {
    const int8_t* panels;
    const int32_t* offsets;
    const float *steps, *bias;  // filled up like the panels
    int64_t d_in, d_out;
    int64_t ld() const { return (d_in + 3) / 4 * 4; }
    int64_t n_panels() const { return (d_out + PANEL - 1) / PANEL; }
    Int8Panel panel(int64_t p, bool relu) const {
        const int64_t first = p * PANEL;
        return {panels + first * ld(), offsets + first, steps + first, bias + first, ld(),
                std::min(PANEL, d_out - first), relu};
    }
};

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
constexpr bool HAS_INT8 = true;

static inline __mmask16 first_of(int64_t n) { return n >= W ? __mmask16(0xffff) : __mmask16((1 << n) - 1); }

// Up to 16 of the n numbers at x; zeros behind them.
static inline __m512 numbers_of(const float* x, int64_t n) { return _mm512_maskz_loadu_ps(first_of(n), x); }
static inline __m512 numbers_of(const bf16* x, int64_t n) {
    const __m256i bits = _mm256_maskz_loadu_epi16(first_of(n), x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Written out, since GCC copies the sums of the intrinsic from register to register until none is left.
static inline void add_products(__m512i& sum, __m512i x, __m512i w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
}

template <class U>
static inline void finish(__m512i sum0, __m512i sum1, float step, const Int8Panel& w, U* to) {
    float tile[PANEL];
    _mm512_storeu_ps(tile, _mm512_cvtepi32_ps(sum0));
    _mm512_storeu_ps(tile + W, _mm512_cvtepi32_ps(sum1));
    for (int32_t j = 0; j < PANEL; j++) tile[j] = tile[j] * (step * w.steps[j]) + w.bias[j];
    if (w.relu)
        for (int32_t j = 0; j < PANEL; j++) tile[j] = tile[j] < 0 ? 0 : tile[j];
    if (w.width == PANEL)
        for (int32_t j = 0; j < PANEL; j++) put(to[j], tile[j]);
    else
        for (int64_t j = 0; j < w.width; j++) put(to[j], tile[j]);
}

// As many rows as there are numbers R, which are written out so that every sum has a register of its own.
template <class U, size_t... R>
static inline int64_t int8_rows(std::index_sequence<R...>, int64_t i, const uint8_t* q, const float* steps,
                                const Int8Panel& w, U* y, int64_t n, int64_t d_out) {
    constexpr int64_t rows = sizeof...(R);
    for (; i + rows <= n; i += rows) {
        __m512i a[rows], b[rows];
        ((a[R] = _mm512_loadu_si512(w.offsets), b[R] = _mm512_loadu_si512(w.offsets + W)), ...);
        const uint8_t* x = q + i * w.d_in;
        const int8_t* weights = w.weights;
        for (int64_t l = 0; l < w.d_in; l += 4, x += 4, weights += 4 * PANEL) {
            const __m512i w0 = _mm512_loadu_si512(weights), w1 = _mm512_loadu_si512(weights + 64);
            const auto add = [&](__m512i& sum0, __m512i& sum1, const uint8_t* at) {
                int32_t four;
                memcpy(&four, at, 4);
                const __m512i numbers = _mm512_set1_epi32(four);
                add_products(sum0, numbers, w0);
                add_products(sum1, numbers, w1);
            };
            (add(a[R], b[R], x + R * w.d_in), ...);
        }
        (finish(a[R], b[R], steps[i + R], w, y + (i + R) * d_out), ...);
    }
    return i;
}

template <class T>
static inline void quantize(const T* x, uint8_t* q, float* step, int64_t d_in, int64_t ld) {
    float most = 0;
    for (int64_t j = 0; j < d_in; j += W)
        most = std::max(most, _mm512_reduce_max_ps(_mm512_abs_ps(numbers_of(x + j, d_in - j))));
    const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
    for (int64_t j = 0; j < d_in; j += W) {
        const __m512 scaled = _mm512_mul_ps(numbers_of(x + j, d_in - j), inverse);
        const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(scaled), _mm512_set1_epi32(128));
        _mm512_mask_cvtepi32_storeu_epi8(q + j, first_of(ld - j), whole);
    }
    *step = most / 127.0f;
}

// All rows of the panel's outputs.
template <class U>
static inline void int8_panel(const uint8_t* q, const float* steps, const Int8Panel& w, U* y, int64_t n,
                              int64_t stride) {
    int64_t i = int8_rows(std::make_index_sequence<12>(), 0, q, steps, w, y, n, stride);
    i = int8_rows(std::make_index_sequence<4>(), i, q, steps, w, y, n, stride);
    int8_rows(std::make_index_sequence<1>(), i, q, steps, w, y, n, stride);
}

template <class T, class U>
static void int8_product(const T* x, const Int8Weight& weight, U* y, int64_t n, bool relu) {
    std::unique_ptr<uint8_t[]> q(new uint8_t[size_t(n * weight.ld())]);
    std::unique_ptr<float[]> steps(new float[size_t(n)]);
#pragma omp parallel
    {
#pragma omp for
        for (int64_t i = 0; i < n; i++)
            quantize(x + i * weight.d_in, q.get() + i * weight.ld(), &steps[i], weight.d_in, weight.ld());
#pragma omp for schedule(dynamic, 2)
        for (int64_t p = 0; p < weight.n_panels(); p++)
            int8_panel(q.get(), steps.get(), weight.panel(p, relu), y + p * PANEL, n, weight.d_out);
    }
}

// The best continuations by the logits x · Wᵀ: some rows' logits of 512 ids at a time exist, in a thread's cache.
template <class T>
static void int8_best_continuations(const T* x, const Int8Weight& weight, Continuations& wanted, double* values,
                                    int64_t* indices) {
    constexpr int64_t ROWS = 12, PANELS = 16;
    const int64_t n = wanted.n_sentences * wanted.beam, n_pieces = (weight.n_panels() + PANELS - 1) / PANELS;
    std::unique_ptr<uint8_t[]> q(new uint8_t[size_t(n * weight.ld())]);
    std::unique_ptr<float[]> steps(new float[size_t(n)]);
    wanted.begin(n_pieces);
#pragma omp parallel
    {
        Scratch scratch;
        float* const z = scratch.take(ROWS * PANELS * PANEL);
#pragma omp for
        for (int64_t i = 0; i < n; i++)
            quantize(x + i * weight.d_in, q.get() + i * weight.ld(), &steps[i], weight.d_in, weight.ld());
#pragma omp for schedule(dynamic, 1)
        for (int64_t piece = 0; piece < n_pieces; piece++) {
            const int64_t first = piece * PANELS, end = std::min(first + PANELS, weight.n_panels());
            const int64_t count = std::min(end * PANEL, weight.d_out) - first * PANEL;
            for (int64_t i = 0; i < n; i += ROWS) {
                const int64_t some = std::min(ROWS, n - i);
                for (int64_t p = first; p < end; p++)
                    int8_panel(q.get() + i * weight.ld(), steps.get() + i, weight.panel(p, false),
                               z + (p - first) * PANEL, some, PANELS * PANEL);
                for (int64_t r = 0; r < some; r++) wanted.take(i + r, piece, z + r * PANELS * PANEL, first * PANEL, count);
            }
        }
    }
    wanted.finish(values, indices);
}
#else
constexpr bool HAS_INT8 = false;

template <class T, class U>
static void int8_product(const T*, const Int8Weight&, U*, int64_t, bool) {}
template <class T>
static void int8_best_continuations(const T*, const Int8Weight&, Continuations&, double*, int64_t*) {}
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Attention of one query a row to keys and values at places of their own.

struct Heads {
    int64_t n, d_k, d_v;
    int64_t keys() const { return n * d_k; }
    int64_t values() const { return n * d_v; }
    int64_t kv() const { return keys() + values(); }
    int64_t scratch(int64_t length) const { return kv() + n * length; }
};

// softmax(q · keys / √d_k) · values in every head; at(t) is the address of all heads' K | V of position t, which are read
// once, from first to last. D: d_k and d_v where they are equal and known beforehand, else 0.
template <int D, class T, class At>
static inline void attend_row(const T* q, At at, int64_t length, const Heads& heads, float* scratch, T* out) {
    const int32_t d_k = D ? D : int32_t(heads.d_k), d_v = D ? D : int32_t(heads.d_v);
    float *query = scratch, *sum = query + heads.keys(), *p = sum + heads.values();
    const float scale = 1.0f / std::sqrt(float(d_k));
    for (int32_t j = 0; j < heads.keys(); j++) query[j] = to_float(q[j]);
    for (int64_t t = 0; t < length; t++) {
        const T* const keys = at(t);
        for (int64_t h = 0; h < heads.n; h++) {
            float dot = 0;
            for (int32_t j = 0; j < d_k; j++) dot += query[h * d_k + j] * to_float(keys[h * d_k + j]);
            p[h * length + t] = dot;
        }
    }
    for (int64_t h = 0; h < heads.n; h++) {
        float* const mine = p + h * length;
        const float top = largest(mine, length);
        float total = 0;
        for (int32_t t = 0; t < length; t++) {
            mine[t] = exponential((mine[t] - top) * scale);
            total += mine[t];
        }
        const float inverse = 1.0f / total;
        for (int32_t t = 0; t < length; t++) mine[t] *= inverse;
    }
    for (int32_t j = 0; j < heads.values(); j++) sum[j] = 0;
    for (int64_t t = 0; t < length; t++) {
        const T* const values = at(t) + heads.keys();
        for (int64_t h = 0; h < heads.n; h++) {
            const float weight = p[h * length + t];
            for (int32_t j = 0; j < d_v; j++) sum[h * d_v + j] += weight * to_float(values[h * d_v + j]);
        }
    }
    for (int32_t j = 0; j < heads.values(); j++) put(out[j], sum[j]);
}

// Self-attention. qkv: (row, Q | K | V of all heads). The new keys and values go to cache[slot, length], where the cache
// is (slot, position, K | V); ancestors[slot, position] is the slot in which a row's ancestor wrote at that position, so
// that reordering a beam moves no key.
template <int D, class T>
static void attend_to_past(const T* qkv, T* cache, int32_t* ancestors, const int64_t* slots, const int64_t* lengths,
                           T* out, int64_t n, int64_t capacity, Heads heads) {
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for
        for (int64_t i = 0; i < n; i++) {
            const T* const q = qkv + i * (heads.keys() + heads.kv());
            int32_t* const mine = ancestors + slots[i] * capacity;
            const auto at = [&](int64_t t) { return cache + (mine[t] * capacity + t) * heads.kv(); };
            mine[lengths[i]] = int32_t(slots[i]);
            memcpy(at(lengths[i]), q + heads.keys(), size_t(heads.kv()) * sizeof(T));
            attend_row<D>(q, at, lengths[i] + 1, heads, scratch.take(heads.scratch(lengths[i] + 1)),
                          out + i * heads.values());
        }
    }
}

// Attention to the source. memories[s]: the address of sentence s's (src, K | V of all heads).
template <int D, class T>
static void attend_to_source(const T* q, const int64_t* memories, const int64_t* src_lengths, T* out, int64_t n,
                             int64_t beam, Heads heads) {
#pragma omp parallel
    {
        Scratch scratch;
#pragma omp for
        for (int64_t i = 0; i < n; i++) {
            const T* const memory = reinterpret_cast<const T*>(memories[i / beam]);
            const int64_t length = src_lengths[i / beam];
            attend_row<D>(
                q + i * heads.keys(), [&](int64_t t) { return memory + t * heads.kv(); }, length, heads,
                scratch.take(heads.scratch(length)), out + i * heads.values());
        }
    }
}

#define EXPORT(T)                                                                                                      \
    void attend_to_past_##T(const T* qkv, T* cache, int32_t* ancestors, const int64_t* slots, const int64_t* lengths,  \
                            T* out, int64_t n, int64_t capacity, int64_t n_heads, int64_t d_k, int64_t d_v) {          \
        const auto attend = d_k == 64 && d_v == 64 ? attend_to_past<64, T>                                             \
                            : d_k == 32 && d_v == 32 ? attend_to_past<32, T> : attend_to_past<0, T>;                   \
        attend(qkv, cache, ancestors, slots, lengths, out, n, capacity, {n_heads, d_k, d_v});                          \
    }                                                                                                                  \
    void attend_to_source_##T(const T* q, const int64_t* memories, const int64_t* src_lengths, T* out, int64_t n,      \
                              int64_t beam, int64_t n_heads, int64_t d_k, int64_t d_v) {                               \
        const auto attend = d_k == 64 && d_v == 64 ? attend_to_source<64, T>                                           \
                            : d_k == 32 && d_v == 32 ? attend_to_source<32, T> : attend_to_source<0, T>;               \
        attend(q, memories, src_lengths, out, n, beam, {n_heads, d_k, d_v});                                           \
    }                                                                                                                  \
    void best_continuations_##T(const T* logits, const double* log_probs, const int64_t* required,                     \
                                const uint8_t* never, const uint8_t* may_end, double* values, int64_t* indices,        \
                                int64_t n_sentences, int64_t beam, int64_t vocab, int64_t eos, int64_t k) {            \
        Continuations wanted{log_probs, required, never, may_end, n_sentences, beam, vocab, eos, k};                   \
        best_continuations(logits, wanted, values, indices);                                                           \
    }                                                                                                                  \
    void int8_best_continuations_##T(const T* x, const Int8Weight* weight, const double* log_probs,                    \
                                     const int64_t* required, const uint8_t* never, const uint8_t* may_end,            \
                                     double* values, int64_t* indices, int64_t n_sentences, int64_t beam,              \
                                     int64_t eos, int64_t k) {                                                         \
        Continuations wanted{log_probs, required, never, may_end, n_sentences, beam, weight->d_out, eos, k};           \
        int8_best_continuations(x, *weight, wanted, values, indices);                                                  \
    }                                                                                                                  \
    void int8_product_##T(const T* x, const Int8Weight* weight, T* y, int64_t n, int32_t relu) {                       \
        int8_product(x, *weight, y, n, relu);                                                                          \
    }                                                                                                                  \
    void int8_logits_##T(const T* x, const Int8Weight* weight, float* y, int64_t n) {                                  \
        int8_product(x, *weight, y, n, false);                                                                         \
    }

extern "C" {
EXPORT(float)
EXPORT(bf16)
void panel_product_float(const float* x, const float* panels, const float* bias, float* y, int64_t n, int64_t d_in,
                         int64_t d_out) {
    panel_product(x, panels, bias, y, n, d_in, d_out);
}
int32_t has_int8() { return HAS_INT8; }
}
