// A search's step: all of the decoder's layers in one call, then the best continuations. A row is a hypothesis; `beam`
// rows in a row belong to a sentence.
//
// What is computed for a row never depends on the other rows, to the last bit: sums over it are taken in one order,
// whatever lies beside it and however many threads share the work.

#include "attention.h"
#include "continuations.h"

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
void decoding_structure_sizes(int64_t* sizes) {
    sizes[0] = sizeof(Weight);
    sizes[1] = sizeof(Beams);
    sizes[2] = sizeof(DecoderLayer<float>);
    sizes[3] = sizeof(Step<float>);
}
}
