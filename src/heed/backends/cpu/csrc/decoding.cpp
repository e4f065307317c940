// A search's step through all decoder layers in one call. A row is a hypothesis; `beam`
// consecutive rows belong to a sentence.
//
// A row's result never depends on the other rows, to the last bit: its sums are taken in one order, whatever is
// computed next to it and however many threads share the work.

#include "cached_attention.h"
#include "bf16_products.h"
#include "int8_products.h"
#include "row_math.h"

namespace heed {

// Products are in float with weights, keys and values in float, or in bf16 or 8-bit integers with keys and values in
// bf16; everything between them is float. Memory holds the rows as the products read them; take(i, …) puts row i there.

struct Fp32Products {
    using Stored = float;
    struct Rows {};
    struct Memory {
        Memory(int64_t, int64_t) {}
        Rows rows(int64_t) const { return {}; }
    };
    explicit Fp32Products(Rows) {}
    void take(int64_t, const float*, int64_t) const {}
    void product(const float* x, const Weight& weight, float* y, int64_t n, bool relu, Team& team) const {
        panel_product(x, weight, y, n, relu, team);
    }
};

template <class NarrowMemory>
struct NarrowProducts {
    using Stored = bf16;
    using Memory = NarrowMemory;
    using Rows = decltype(std::declval<Memory>().rows());
    const Rows x;
    explicit NarrowProducts(Rows rows) : x(rows) {}
    void take(int64_t i, const float* row, int64_t d_in) const { x.take(i, row, d_in); }
    void product(const float*, const Weight& weight, float* y, int64_t n, bool relu, Team& team) const {
        rows_product(x, weight, y, n, relu, team);
    }
};

// What the layers write to. Each row has its own part of each, whatever the width of the products that are stored
// there.
template <class Products>
struct Workspace {
    float *x, *wide, *attended, *branch;
    float* sum;  // of all sub-layers so far: x itself, unless with pre-norm
    typename Products::Rows rows;
};

// Some rows through all layers, with a team of threads or by one alone.
template <int D, class Products>
static void run_layers(const Step<typename Products::Stored>& step, const Beams& beams,
                       const Workspace<Products>& space, int64_t n, Team& team) {
    using T = typename Products::Stored;
    const Heads& heads = beams.heads;
    const int64_t d = step.d_model, qkv_width = heads.keys() + heads.kv();
    float *const x = space.x, *const wide = space.wide, *const attended = space.attended, *const branch = space.branch;
    float* const sum = space.sum;
    const Products products(space.rows);
    Scratch scratch;
    const auto attend = [&](auto run) {
        team.split(n, [&](int64_t i) {
            float* const out = attended + i * heads.values();
            run(i, out);
            products.take(i, out, heads.values());
        });
    };
    const auto norm = [&](int64_t i, const T* gain, const T* bias) {  // of row i's sum
        float* const row = x + i * d;
        if (sum != x) std::copy_n(sum + i * d, d, row);
        const Moments of = moments(row, d, step.epsilon);
        for (int32_t j = 0; j < d; j++) row[j] = (row[j] - of.mean) * of.rstd * to_float(gain[j]) + to_float(bias[j]);
    };
    const auto add_norm = [&](const T* gain, const T* bias) {
        team.split(n, [&](int64_t i) {
            for (int32_t j = 0; j < d; j++) sum[i * d + j] += branch[i * d + j];
            norm(i, gain, bias);
            products.take(i, x + i * d, d);
        });
    };
    const auto activate = [&](float* row) {
        if (step.activation == GELU) apply(gelu, row, step.d_ff);
        if (step.activation == SWISH) apply(swish, row, step.d_ff);
    };
    team.split(n, [&](int64_t i) {
        const int64_t row = beams.rows[i], place = beams.lengths[row];
        const T *word = step.embedding + step.tokens[row] * d, *position = step.positions + place * d;
        const float scale = place < step.first_word ? 0 : step.scale;
        for (int32_t j = 0; j < d; j++) sum[i * d + j] = to_float(word[j]) * scale + to_float(position[j]);
        if (step.first_gain) norm(i, step.first_gain, step.first_bias);
        products.take(i, x + i * d, d);
    });
    for (int64_t l = 0; l < step.n_layers; l++) {
        const DecoderLayer<T>& layer = step.layers[l];
        products.product(x, layer.qkv, wide, n, false, team);
        attend([&](int64_t i, float* out) {
            attend_to_past<D>(wide + i * qkv_width, layer.cache, out, i, beams, scratch);
        });
        products.product(attended, layer.self_out, branch, n, false, team);
        add_norm(layer.self_gain, layer.self_bias);
        products.product(x, layer.query, wide, n, false, team);
        attend([&](int64_t i, float* out) {
            attend_to_source<D>(wide + i * heads.keys(), layer.memories, out, i, beams, scratch);
        });
        products.product(attended, layer.cross_out, branch, n, false, team);
        add_norm(layer.cross_gain, layer.cross_bias);
        products.product(x, layer.inner, wide, n, step.activation == RELU, team);
        team.split(n, [&](int64_t i) {
            activate(wide + i * step.d_ff);
            products.take(i, wide + i * step.d_ff, step.d_ff);
        });
        products.product(wide, layer.outer, branch, n, false, team);
        add_norm(layer.feed_forward_gain, layer.feed_forward_bias);
    }
}

constexpr int64_t MIN_ROWS_PER_THREAD = 16;

template <class Products>
static void decoder_step(const Step<typename Products::Stored>& step, float* x) {
    const Heads& heads = step.beams.heads;
    const int64_t n = step.beams.n_rows, d = step.d_model;
    const int64_t widest = std::max({step.d_ff, heads.keys() + heads.kv(), d});
    const int64_t sum_width = step.first_gain ? d : 0;
    const std::unique_ptr<float[]> memory(new float[size_t(n * (widest + heads.values() + d + sum_width))]);
    const typename Products::Memory rows(n, widest);
    const auto space_from = [&](int64_t first) {
        float* const wide = memory.get();
        float *const attended = wide + n * widest, *const branch = attended + n * heads.values();
        float* const sum = step.first_gain ? branch + n * d : x;
        return Workspace<Products>{x + first * d,      wide + first * widest, attended + first * heads.values(),
                                   branch + first * d, sum + first * d,       rows.rows(first)};
    };
    with_width(heads.d_k, heads.d_v, [&](auto width) {
        constexpr int D = decltype(width)::value;
        parallel([&](Team& team) {
            const SearchTiles tiles;
            // Where each thread has enough rows, it takes them through all layers without waiting for the others.
            if (n >= MIN_ROWS_PER_THREAD * team.size) {
                const int64_t first = n * team.index / team.size, end = n * (team.index + 1) / team.size;
                Beams beams = step.beams;
                beams.rows += first;
                Team alone;
                run_layers<D, Products>(step, beams, space_from(first), end - first, alone);
            } else {
                run_layers<D, Products>(step, step.beams, space_from(0), n, team);
            }
        });
    });
}

// run(row, scratch) for each of n rows, in all threads.
template <class Run>
static void for_rows(int64_t n, Run run) {
    parallel([&](Team& team) {
        Scratch scratch;
        team.split_last(n, [&](int64_t r) { run(r, scratch); });
    });
}

template <class T>
static void all_attend_to_past(const T* qkv, T* cache, const Beams& beams, T* out) {
    const Heads& heads = beams.heads;
    const int64_t qkv_width = heads.keys() + heads.kv();
    with_width(heads.d_k, heads.d_v, [&](auto width) {
        for_rows(beams.n_rows, [&](int64_t r, Scratch& scratch) {
            attend_to_past<decltype(width)::value>(qkv + r * qkv_width, cache, out + r * heads.values(), r, beams,
                                                   scratch);
        });
    });
}

template <class T>
static void all_attend_to_source(const T* q, const T* const* memories, const Beams& beams, T* out) {
    const Heads& heads = beams.heads;
    with_width(heads.d_k, heads.d_v, [&](auto width) {
        for_rows(beams.n_rows, [&](int64_t r, Scratch& scratch) {
            attend_to_source<decltype(width)::value>(q + r * heads.keys(), memories, out + r * heads.values(), r, beams,
                                                     scratch);
        });
    });
}

}  // namespace heed

using heed::Beams;
using heed::Weight;

extern "C" {
#define HEED_DEFINE(T, NAME)                                                                                           \
 void attend_to_past_##NAME(const T* qkv, T* cache, const Beams* beams, T* out) {                                      \
  heed::all_attend_to_past(qkv, cache, *beams, out);                                                                   \
 }                                                                                                                     \
 void attend_to_source_##NAME(const T* q, const T* const* memories, const Beams* beams, T* out) {                      \
  heed::all_attend_to_source(q, memories, *beams, out);                                                                \
 }                                                                                                                     \
 void int8_product_##NAME(const T* x, const Weight* weight, T* y, int64_t n, int32_t relu) {                           \
  if constexpr (heed::HAS_INT8_DOT) heed::narrow_product<heed::QuantizedMemory>(x, *weight, y, n, relu);                                        \
 }                                                                                                                     \
 void bf16_product_##NAME(const T* x, const Weight* weight, T* y, int64_t n, int32_t relu) {                           \
  if constexpr (heed::HAS_BF16_DOT) heed::narrow_product<heed::Bf16Memory>(x, *weight, y, n, relu);                                        \
 }
HEED_DEFINE(float, float)
HEED_DEFINE(heed::bf16, bf16)
#undef HEED_DEFINE

void panel_product_float(const float* x, const Weight* weight, float* y, int64_t n, int32_t relu) {
    heed::parallel([&](heed::Team& team) { heed::panel_product(x, *weight, y, n, relu, team); });
}
void decoder_step_float(const heed::Step<float>* step, float* x) { heed::decoder_step<heed::Fp32Products>(*step, x); }
void decoder_step_bf16(const heed::Step<heed::bf16>* step, float* x) {
    if (step->layers[0].qkv.number_bytes == 2)
        heed::decoder_step<heed::NarrowProducts<heed::Bf16Memory>>(*step, x);
    else if constexpr (heed::HAS_INT8_DOT)
        heed::decoder_step<heed::NarrowProducts<heed::QuantizedMemory>>(*step, x);
}
void use_threads(int32_t n) { omp_set_num_threads(n); }
int32_t has_int8() { return heed::HAS_INT8_DOT; }
int32_t has_bf16() { return heed::HAS_BF16_DOT; }
void decoding_structure_sizes(int64_t* sizes) {
    sizes[0] = sizeof(Weight);
    sizes[1] = sizeof(Beams);
    sizes[2] = sizeof(heed::DecoderLayer<float>);
    sizes[3] = sizeof(heed::Step<float>);
    sizes[4] = sizeof(heed::BeamAccount);
    sizes[5] = sizeof(heed::EndingRules);
    sizes[6] = sizeof(heed::Search);
}
}
