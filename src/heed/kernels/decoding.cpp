// The passes of a search's step: attention to what each hypothesis has written and to its source, the best
// continuations, and all of the decoder's layers in one call. A row is a hypothesis; `beam` rows in a row belong to a
// sentence.
//
// What is computed for a row never depends on the other rows, to the last bit: sums over it are taken in one order,
// whatever lies beside it and however many threads share the work.

#include "products.h"

#include <type_traits>

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

// run(j) for each j of [from, to) with x[j] > bar, as bar was at the beginning of its vector.
template <class Do>
static inline void each_above(const float* x, int64_t from, int64_t to, const float& bar, Do run) {
    int64_t j = from;
#if defined(__AVX512F__)
    for (; j + W <= to; j += W) {
        uint32_t above = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + j), _mm512_set1_ps(bar), _CMP_GT_OQ);
        for (; above; above &= above - 1) run(j + __builtin_ctz(above));
    }
#endif
    for (; j < to; j++)
        if (x[j] > bar) run(j);
}

struct Continuations {
    // The rows whose logits come, of all n_sentences · beam. Of each of all, its log-probability so far; its only choice,
    // or -1. By id, whether it is never chosen. By sentence, whether eos may be.
    const int64_t* rows;
    const double* log_probs;
    const int64_t* required;
    const uint8_t *never, *may_end;
    int64_t n_rows, n_sentences, beam, vocab, eos, k;

    struct Sum {  // of e^(logit - top)
        float top, total;
    };
    int64_t n_pieces = 0;
    std::unique_ptr<Sum[]> sums;         // (row, piece)
    std::unique_ptr<Candidate[]> best;   // (thread, row, k), by logits
    std::unique_ptr<int64_t[]> sizes;    // (thread, row)

    void begin(int64_t pieces) {
        n_pieces = pieces;
        const size_t lists = size_t(n_rows * omp_get_max_threads());
        sums.reset(new Sum[size_t(n_rows * n_pieces)]);
        best.reset(new Candidate[lists * size_t(k)]);
        sizes.reset(new int64_t[lists]());
    }

    // The logits z of `count` ids from `first` on; a thread takes pieces in their order. tops: room for each BLOCK.
    static constexpr int64_t BLOCK = 64;
    void take(int64_t r, int64_t piece, const float* z, int64_t first, int64_t count, float* tops) {
        const int64_t n_blocks = (count + BLOCK - 1) / BLOCK;
        for (int64_t b = 0; b < n_blocks; b++) tops[b] = largest(z + b * BLOCK, std::min(BLOCK, count - b * BLOCK));
        const float top = largest(tops, n_blocks);
        float total = 0;
        for (int32_t j = 0; j < count; j++) total += exponential(z[j] - top);
        sums[r * n_pieces + piece] = {top, total};
        const int64_t row = rows[r], list = omp_get_thread_num() * n_rows + r, only = required[row];
        const bool ends = may_end[row / beam];
        Candidate* const mine = best.get() + list * k;
        int64_t size = sizes[list];
        float bar = size == k ? float(mine[k - 1].value) : -INFINITY;  // to be cleared where there are k already
        const auto consider = [&](int64_t j) {
            const int64_t id = first + j;
            if ((size == k && !(z[j] > bar)) || never[id] || (id == eos && !ends)) return;
            size = insert(mine, size, k, {z[j], row % beam * vocab + id});
            if (size == k) bar = float(mine[k - 1].value);
        };
        if (only >= 0) {
            if (only >= first && only < first + count) consider(only - first);
        } else {
            for (int64_t b = 0; b < n_blocks; b++)
                if (size < k || tops[b] > bar) each_above(z, b * BLOCK, std::min(count, (b + 1) * BLOCK), bar, consider);
        }
        sizes[list] = size;
    }

    // index: row in its sentence · vocab + id; where fewer than k exist, value is -infinity.
    void finish(double* values, int64_t* indices) const {
        std::unique_ptr<Candidate[]> chosen(new Candidate[size_t(k)]);
        int64_t r = 0;
        for (int64_t s = 0; s < n_sentences; s++) {
            int64_t size = 0;
            for (; r < n_rows && rows[r] / beam == s; r++) {
                const Sum* const mine = sums.get() + r * n_pieces;
                float top = mine[0].top;
                for (int64_t p = 1; p < n_pieces; p++) top = std::max(top, mine[p].top);
                double total = 0;
                for (int64_t p = 0; p < n_pieces; p++) total += mine[p].total * double(exponential(mine[p].top - top));
                const double log_total = top + std::log(total);
                for (int64_t t = 0; t < omp_get_max_threads(); t++) {
                    const int64_t list = t * n_rows + r;
                    for (int64_t c = 0; c < sizes[list]; c++) {
                        const Candidate candidate = best[list * k + c];
                        size = insert(chosen.get(), size, k,
                                      {log_probs[rows[r]] + (candidate.value - log_total), candidate.index});
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
    const int64_t vocab = wanted.vocab, n = wanted.n_rows;
    wanted.begin(1);
#pragma omp parallel
    {
        Scratch scratch;
        float* const z = scratch.take(vocab + vocab / Continuations::BLOCK + 1);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < n; i++) {
            for (int32_t j = 0; j < vocab; j++) z[j] = to_float(logits[i * vocab + j]);
            wanted.take(i, 0, z, 0, vocab, z + vocab);
        }
    }
    wanted.finish(values, indices);
}

// ---------------------------------------------------------------------------------------------------------------------
#if defined(HEED_INT8)
// The best continuations by the logits x · Wᵀ: some rows' logits of 512 ids at a time exist, in a thread's cache.
template <class T>
static void int8_best_continuations(const T* x, const Weight& weight, Continuations& wanted, double* values,
                                    int64_t* indices) {
    constexpr int64_t ROWS = 12, PANELS = 16;
    const int64_t n = wanted.n_rows, n_pieces = (weight.n_panels() + PANELS - 1) / PANELS;
    std::unique_ptr<uint8_t[]> numbers(new uint8_t[size_t(n * in_fours(weight.d_in))]);
    std::unique_ptr<float[]> steps(new float[size_t(n)]);
    const Quantized rows{numbers.get(), steps.get()};
    wanted.begin(n_pieces);
#pragma omp parallel
    {
        Scratch scratch;
        float *const z = scratch.take((ROWS + 1) * PANELS * PANEL), *const tops = z + ROWS * PANELS * PANEL;
        const int64_t ahead = omp_get_num_threads() * PANELS;
#pragma omp for
        for (int64_t i = 0; i < n; i++) rows.take(i, x + i * weight.d_in, weight.d_in);
#pragma omp for schedule(dynamic, 1)
        for (int64_t piece = 0; piece < n_pieces; piece++) {
            const int64_t first = piece * PANELS, end = std::min(first + PANELS, weight.n_panels());
            const int64_t count = std::min(end * PANEL, weight.d_out) - first * PANEL;
            for (int64_t i = 0; i < n; i += ROWS) {
                const int64_t some = std::min(ROWS, n - i);
                for (int64_t p = first; p < end; p++) {
                    // Every block of rows fetches some panels of the piece that this thread will probably take next.
                    const bool fetch = (p - first) * n / PANELS / ROWS * ROWS == i;
                    int8_panel(rows.numbers + i * in_fours(weight.d_in), rows.steps + i,
                               int8_panel_of(weight, p, fetch ? p + ahead : weight.n_panels(), false), z + (p - first) * PANEL, some,
                               PANELS * PANEL);
                }
                for (int64_t r = 0; r < some; r++) wanted.take(i + r, piece, z + r * PANELS * PANEL, first * PANEL, count, tops);
            }
        }
    }
    wanted.finish(values, indices);
}
#else
template <class T>
static void int8_best_continuations(const T*, const Weight&, Continuations&, double*, int64_t*) {}
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Attention of one query a row to keys and values at places of their own.

struct Heads {
    int64_t n, d_k, d_v;
    int64_t keys() const { return n * d_k; }
    int64_t values() const { return n * d_v; }
    int64_t kv() const { return keys() + values(); }
};

#if defined(__AVX512BF16__) && defined(__AVX512VL__)
constexpr bool HAS_BF16_PAIRS = true;

// The instruction multiplies pairs of bf16 numbers and adds both products to a float.
template <class T>
static inline __m512bh pairs(const T& x) {
    static_assert(sizeof(T) == sizeof(__m512bh));
    __m512bh numbers;
    memcpy(&numbers, &x, sizeof(numbers));
    return numbers;
}
static inline __m512i loaded(const void* x) { return _mm512_loadu_si512(x); }

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

// ---------------------------------------------------------------------------------------------------------------------
// One more position of every row through all of the decoder's layers, in one parallel region. Products are in float with
// weights, keys and values in float, or in 8 bits with the rest of those in bf16; between them all is float.

struct Fp32Products {
    using Kept = float;
    explicit Fp32Products(Quantized) {}
    void take(int64_t, const float*, int64_t) const {}
    void product(const float* x, const Weight& weight, float* y, Share share, bool relu) const {
        panel_product(x, weight, y, share, relu);
    }
};

struct Int8Products {
    using Kept = bf16;
    const Quantized x;
    explicit Int8Products(Quantized place) : x(place) {}
    void take(int64_t i, const float* row, int64_t d_in) const { x.take(i, row, d_in); }
    void product(const float*, const Weight& weight, float* y, Share share, bool relu) const {
        int8_product(x, weight, y, share, relu);
    }
};

template <class T>
struct DecoderLayer {
    Weight qkv, self_out, query, cross_out, inner, outer;
    const T *self_gain, *self_bias, *cross_gain, *cross_bias, *feed_forward_gain, *feed_forward_bias;
    T* cache;
    const T* const* memories;
};

constexpr int64_t ROWS_OF_A_THREAD = 16;

template <class T>
struct Step {
    const DecoderLayer<T>* layers;
    int64_t n_layers, d_model, d_ff;
    Beams beams;
    const int64_t* tokens;
    const T *embedding, *positions;
    float scale, epsilon;  // of the embedding; of the norms
};

// What the layers write to: of each row its place in every one of these, wherever a product of another width puts it.
struct Workspace {
    float *x, *wide, *attended, *branch;
    Quantized quantized;
};

template <int D, class Products>
static void through_layers(const Step<typename Products::Kept>& step, const Beams& beams, const Workspace& space,
                           const Share share) {
    using T = typename Products::Kept;
    const Heads& heads = beams.heads;
    const int64_t d = step.d_model, qkv_width = heads.keys() + heads.kv();
    float *const x = space.x, *const wide = space.wide, *const attended = space.attended, *const branch = space.branch;
    const Products products(space.quantized);
    Scratch scratch;
    const auto attend = [&](auto run) {
        share.rows([&](int64_t i) {
            float* const out = attended + i * heads.values();
            run(i, out);
            products.take(i, out, heads.values());
        });
    };
    const auto add_norm = [&](const T* gain, const T* bias) {
        share.rows([&](int64_t i) {
            float* const row = x + i * d;
            for (int32_t j = 0; j < d; j++) row[j] += branch[i * d + j];
            const Moments of = moments(row, d, step.epsilon);
            for (int32_t j = 0; j < d; j++)
                row[j] = (row[j] - of.mean) * of.rstd * to_float(gain[j]) + to_float(bias[j]);
            products.take(i, row, d);
        });
    };
    share.rows([&](int64_t i) {
        const int64_t row = beams.rows[i];
        const T *word = step.embedding + step.tokens[row] * d, *position = step.positions + beams.lengths[row] * d;
        for (int32_t j = 0; j < d; j++) x[i * d + j] = to_float(word[j]) * step.scale + to_float(position[j]);
        products.take(i, x + i * d, d);
    });
    for (int64_t l = 0; l < step.n_layers; l++) {
        const DecoderLayer<T>& layer = step.layers[l];
        products.product(x, layer.qkv, wide, share, false);
        attend([&](int64_t i, float* out) {
            attend_to_past<D>(beams, i, wide + i * qkv_width, layer.cache, scratch, out);
        });
        products.product(attended, layer.self_out, branch, share, false);
        add_norm(layer.self_gain, layer.self_bias);
        products.product(x, layer.query, wide, share, false);
        attend([&](int64_t i, float* out) {
            attend_to_source<D>(beams, i, wide + i * heads.keys(), layer.memories, scratch, out);
        });
        products.product(attended, layer.cross_out, branch, share, false);
        add_norm(layer.cross_gain, layer.cross_bias);
        products.product(x, layer.inner, wide, share, true);
        share.rows([&](int64_t i) { products.take(i, wide + i * step.d_ff, step.d_ff); });
        products.product(wide, layer.outer, branch, share, false);
        add_norm(layer.feed_forward_gain, layer.feed_forward_bias);
    }
}

template <class Products>
static void decoder_step(const Step<typename Products::Kept>& step, float* x) {
    const Heads& heads = step.beams.heads;
    const int64_t n = step.beams.n_rows, d = step.d_model;
    const int64_t widest = std::max({step.d_ff, heads.keys() + heads.kv(), d}), bytes = in_fours(widest);
    std::unique_ptr<float[]> memory(new float[size_t(n * (widest + heads.values() + d + 1))]);
    std::unique_ptr<uint8_t[]> numbers(new uint8_t[size_t(n * bytes)]);
    const auto space_from = [&](int64_t first) {
        float* const wide = memory.get();
        float *const attended = wide + n * widest, *const branch = attended + n * heads.values();
        return Workspace{x + first * d, wide + first * widest, attended + first * heads.values(), branch + first * d,
                         {numbers.get() + first * bytes, branch + n * d + first}};
    };
    with_width(heads, [&](auto width) {
        constexpr int D = decltype(width)::value;
#pragma omp parallel
        {
            // Where each thread has rows enough, it takes them through all layers without waiting for the others.
            const int64_t n_threads = omp_get_num_threads(), mine = omp_get_thread_num();
            Beams beams = step.beams;
            if (n >= ROWS_OF_A_THREAD * n_threads) {
                const int64_t first = n * mine / n_threads;
                beams.rows += first;
                through_layers<D, Products>(step, beams, space_from(first),
                                            Share{n * (mine + 1) / n_threads - first, true});
            } else {
                through_layers<D, Products>(step, beams, space_from(0), Share{n, false});
            }
        }
    });
}

#define EXPORT(T)                                                                                                      \
    void attend_to_past_##T(const T* qkv, T* cache, const Beams* beams, T* out) {                                      \
        const Heads& heads = beams->heads;                                                                             \
        const int64_t wide = heads.keys() + heads.kv();                                                                \
        with_width(heads, [&](auto width) {                                                                            \
            for_rows(beams->n_rows, [&](int64_t i, Scratch& scratch) {                                                 \
                attend_to_past<decltype(width)::value>(*beams, i, qkv + i * wide, cache, scratch,                      \
                                                       out + i * heads.values());                                      \
            });                                                                                                        \
        });                                                                                                            \
    }                                                                                                                  \
    void attend_to_source_##T(const T* q, const T* const* memories, const Beams* beams, T* out) {                      \
        const Heads& heads = beams->heads;                                                                             \
        with_width(heads, [&](auto width) {                                                                            \
            for_rows(beams->n_rows, [&](int64_t i, Scratch& scratch) {                                                 \
                attend_to_source<decltype(width)::value>(*beams, i, q + i * heads.keys(), memories, scratch,           \
                                                         out + i * heads.values());                                    \
            });                                                                                                        \
        });                                                                                                            \
    }                                                                                                                  \
    void best_continuations_##T(const T* logits, const int64_t* rows, const double* log_probs,                         \
                                const int64_t* required, const uint8_t* never, const uint8_t* may_end, double* values, \
                                int64_t* indices, int64_t n_rows, int64_t n_sentences, int64_t beam, int64_t vocab,    \
                                int64_t eos, int64_t k) {                                                              \
        Continuations wanted{rows, log_probs, required, never, may_end, n_rows, n_sentences, beam, vocab, eos, k};     \
        best_continuations(logits, wanted, values, indices);                                                           \
    }                                                                                                                  \
    void int8_product_##T(const T* x, const Weight* weight, T* y, int64_t n, int32_t relu) {                           \
        quantized_product(x, *weight, y, n, relu);                                                                     \
    }

extern "C" {
EXPORT(float)
EXPORT(bf16)
void panel_product_float(const float* x, const Weight* weight, float* y, int64_t n, int32_t relu) {
#pragma omp parallel
    panel_product(x, *weight, y, Share{n, false}, relu);
}
void int8_best_continuations_float(const float* x, const Weight* weight, const int64_t* rows, const double* log_probs,
                                   const int64_t* required, const uint8_t* never, const uint8_t* may_end,
                                   double* values, int64_t* indices, int64_t n_rows, int64_t n_sentences, int64_t beam,
                                   int64_t eos, int64_t k) {
    Continuations wanted{rows, log_probs, required, never, may_end, n_rows, n_sentences, beam, weight->d_out, eos, k};
    int8_best_continuations(x, *weight, wanted, values, indices);
}
void decoder_step_float(const Step<float>* step, float* x) { decoder_step<Fp32Products>(*step, x); }
void decoder_step_bf16(const Step<bf16>* step, float* x) { decoder_step<Int8Products>(*step, x); }
int32_t has_int8() { return HAS_INT8; }
}
