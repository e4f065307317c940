// Whole sentences through all layers in one call: sources, of which the decoder's layers get what they attend to, and
// given targets. A row is a token.

#include "layers.h"

namespace heed {

// The mean of all heads' softmax(query · keys / √d_k).
template <class T>
static void mean_weights(const float* query, const T* memory, int64_t length, const Heads& heads, Scratch& scratch,
                         float* mean) {
    const int64_t ld = whole_vectors(length);
    float* const p = scratch.take(ld);
    std::fill_n(mean, length, 0.0f);
    for (int64_t h = 0; h < heads.n; h++) {
        for (int64_t t = 0; t < length; t++) {
            const T* const key = memory + t * heads.kv() + h * heads.d_k;
            float dot = 0;
            for (int64_t j = 0; j < heads.d_k; j++) dot += query[h * heads.d_k + j] * to_float(key[j]);
            p[t] = dot;
        }
        softmax(p, length, ld, 1.0f / std::sqrt(float(heads.d_k)));
        for (int64_t t = 0; t < length; t++) mean[t] += p[t] / float(heads.n);
    }
}

// The rows from `first` on, which are those of the sentences that begin_sentence and end_sentence enclose.
template <int D, class Products>
static void run_rows(const Step<typename Products::Stored>& step, const Sentences<typename Products::Stored>& of,
                     const Workspace<Products>& space, typename Products::Stored* kv, int64_t begin_sentence,
                     int64_t end_sentence, ThreadTeam& team) {
    using T = typename Products::Stored;
    const Heads& heads = step.beams.heads;
    const int64_t first = of.offsets[begin_sentence], n = of.offsets[end_sentence] - first;
    const int64_t kv_width = heads.kv(), qkv_width = heads.keys() + kv_width;
    Scratch scratch;
    Sublayers<Products> run(step, space, n, team);
    run.embed(step.beams.rows + first);
    for (int64_t l = 0; l < step.n_layers; l++) {
        const DecoderLayer<T>& layer = step.layers[l];
        const float* const qkv = run.product(layer.qkv);
        team.split(n, [&](int64_t i) {
            for (int64_t j = 0; j < kv_width; j++)
                put(qkv[i * qkv_width + heads.keys() + j], kv[(first + i) * kv_width + j]);
        });
        run.attend(layer.self_out, layer.self_gain, layer.self_bias, [&](int64_t i, float* out) {
            const int64_t row = first + i, sentence = of.sentences[row], begin = of.offsets[sentence];
            const auto at = [&](int64_t t) { return kv + (begin + t) * kv_width; };
            const int64_t end = of.causal ? row + 1 : of.offsets[sentence + 1];
            attend_row<D, float, T>(qkv + i * qkv_width, at, out, end - begin, heads, scratch);
        });
        if (of.causal) {
            const float* const q = run.product(layer.query);
            run.attend(layer.cross_out, layer.cross_gain, layer.cross_bias, [&](int64_t i, float* out) {
                const int64_t row = first + i, sentence = of.sentences[row], length = step.beams.src_lengths[sentence];
                const T* const memory = layer.memories[sentence];
                const auto at = [&](int64_t t) { return memory + t * kv_width; };
                attend_row<D, float, T>(q + i * heads.keys(), at, out, length, heads, scratch);
                if (of.weights)
                    mean_weights(q + i * heads.keys(), memory, length, heads, scratch,
                                 of.weights + (l * step.beams.n_rows + row) * of.longest_src);
            });
        }
        run.feed_forward(layer);
    }
    for (int64_t l = 0; l < of.n_memories; l++) {
        const float* const memory = run.product(of.kv[l]);
        T* const to = of.memories + (l * step.beams.n_rows + first) * kv_width;
        team.split(n, [&](int64_t i) {
            for (int64_t j = i * kv_width; j < (i + 1) * kv_width; j++) put(memory[j], to[j]);
        });
    }
}

// x (n_rows, d_model): of the last layer.
template <class Products>
static void run_sentences(const Step<typename Products::Stored>& step, const Sentences<typename Products::Stored>& of,
                          float* x) {
    using T = typename Products::Stored;
    const int64_t n = step.beams.n_rows, n_sentences = of.n_sentences;
    const Aligned<T> kv = aligned<T>(n * step.beams.heads.kv());
    const RowMemory<Products> memory(step, x);
    // The sentence that a thread's part begins with: whole ones, of as many rows as the other parts.
    const auto part = [&](int64_t index, int64_t size) {
        return std::lower_bound(of.offsets, of.offsets + n_sentences, n * index / size) - of.offsets;
    };
    with_width(step.beams.heads.d_k, step.beams.heads.d_v, [&](auto width) {
        constexpr int D = decltype(width)::value;
        const auto run = [&](ThreadTeam& team) {
            const SearchTiles tiles;
            const int64_t n_parts = row_pieces(team, n);
            if (n_parts && n_sentences >= 2 * team.size) {
                team.share_last(n_parts, 1, [&](int64_t index) {
                    const int64_t begin = part(index, n_parts), end = part(index + 1, n_parts);
                    if (begin == end) return;
                    ThreadTeam alone;
                    run_rows<D, Products>(step, of, memory.from(of.offsets[begin]), kv.get(), begin, end,
                                             alone);
                });
            } else {
                run_rows<D, Products>(step, of, memory.from(0), kv.get(), 0, n_sentences, team);
            }
        };
        // Other threads sleep until they are woken for this one pass, which takes as long as some of its products.
        if (multiplications(step, n) > 4 * FEW_MULTIPLICATIONS) return parallel_rows(n, n_sentences == 1, run);
        ThreadTeam alone;
        run(alone);
    });
}

}  // namespace heed

extern "C" {
#define HEED_DEFINE(T, NAME, WITH_PRODUCTS)                                                                         \
 heed::Status encode_sources_##NAME(const heed::Step<T>* step, const heed::Sentences<T>* sources) {                 \
  return heed::status_of([&] {                                                                                      \
      const heed::Aligned<float> x = heed::aligned<float>(step->beams.n_rows * step->d_model);                      \
      WITH_PRODUCTS([&](auto products) {                                                                            \
          heed::run_sentences<typename decltype(products)::Type>(*step, *sources, x.get());                         \
      });                                                                                                           \
  });                                                                                                               \
 }                                                                                                                  \
 heed::Status decode_targets_##NAME(const heed::Step<T>* step, const heed::Sentences<T>* targets, float* x) {       \
  return heed::status_of([&] {                                                                                      \
      WITH_PRODUCTS([&](auto products) {                                                                            \
          heed::run_sentences<typename decltype(products)::Type>(*step, *targets, x);                               \
      });                                                                                                           \
  });                                                                                                               \
 }
#define HEED_IN_FLOAT(RUN) (RUN)(heed::Named<heed::Fp32Products>())
#define HEED_NARROW(...) heed::with_narrow_products(step->layers[0].qkv, __VA_ARGS__)
HEED_DEFINE(float, float, HEED_IN_FLOAT)
HEED_DEFINE(heed::bf16, bf16, HEED_NARROW)
#undef HEED_IN_FLOAT
#undef HEED_NARROW
#undef HEED_DEFINE
}
