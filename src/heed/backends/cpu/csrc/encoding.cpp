// Sources through all encoder layers in one call, and what the decoder's layers will attend to. A row is a token.

#include "layers.h"

namespace heed {

// The rows from `first` on, which are those of the sentences that begin_sentence and end_sentence enclose.
template <int D, class Products>
static void encode_rows(const Step<typename Products::Stored>& step, const Sources<typename Products::Stored>& sources,
                        const Workspace<Products>& space, typename Products::Stored* kv, int64_t begin_sentence,
                        int64_t end_sentence, Team& team) {
    using T = typename Products::Stored;
    const Heads& heads = step.beams.heads;
    const int64_t first = sources.offsets[begin_sentence], n = sources.offsets[end_sentence] - first;
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
            const int64_t sentence = sources.sentences[first + i], begin = sources.offsets[sentence];
            const auto at = [&](int64_t t) { return kv + (begin + t) * kv_width; };
            attend_row<D, float, T>(qkv + i * qkv_width, at, out, sources.offsets[sentence + 1] - begin, heads,
                                    scratch);
        });
        run.feed_forward(layer);
    }
    for (int64_t l = 0; l < sources.n_memories; l++) {
        const float* const memory = run.product(sources.kv[l]);
        T* const to = sources.memories + (l * step.beams.n_rows + first) * kv_width;
        team.split(n, [&](int64_t i) {
            for (int64_t j = i * kv_width; j < (i + 1) * kv_width; j++) put(memory[j], to[j]);
        });
    }
}

template <class Products>
static void encode_sources(const Step<typename Products::Stored>& step,
                           const Sources<typename Products::Stored>& sources) {
    using T = typename Products::Stored;
    const int64_t n = step.beams.n_rows, n_sentences = sources.n_sentences;
    const Aligned<float> x = aligned<float>(n * step.d_model);
    const Aligned<T> kv = aligned<T>(n * step.beams.heads.kv());
    const RowMemory<Products> memory(step, x.get());
    // The sentence that a thread's part begins with: whole ones, of as many rows as the other parts.
    const auto part = [&](int64_t index, int64_t size) {
        return std::lower_bound(sources.offsets, sources.offsets + n_sentences, n * index / size) - sources.offsets;
    };
    with_width(step.beams.heads.d_k, step.beams.heads.d_v, [&](auto width) {
        constexpr int D = decltype(width)::value;
        parallel_rows(n, n_sentences == 1, [&](Team& team) {
            const SearchTiles tiles;
            const int64_t n_parts = row_pieces(team, n);
            if (n_parts && n_sentences >= 2 * team.size) {
                team.share_last(n_parts, 1, [&](int64_t index) {
                    const int64_t begin = part(index, n_parts), end = part(index + 1, n_parts);
                    if (begin == end) return;
                    Team alone;
                    encode_rows<D, Products>(step, sources, memory.from(sources.offsets[begin]), kv.get(), begin, end,
                                             alone);
                });
            } else {
                encode_rows<D, Products>(step, sources, memory.from(0), kv.get(), 0, n_sentences, team);
            }
        });
    });
}

}  // namespace heed

extern "C" {
heed::Status encode_sources_float(const heed::Step<float>* step, const heed::Sources<float>* sources) {
    return heed::status_of([&] { heed::encode_sources<heed::Fp32Products>(*step, *sources); });
}
heed::Status encode_sources_bf16(const heed::Step<heed::bf16>* step, const heed::Sources<heed::bf16>* sources) {
    return heed::status_of([&] {
        heed::with_narrow_products(step->layers[0].qkv, [&](auto products) {
            heed::encode_sources<typename decltype(products)::Type>(*step, *sources);
        });
    });
}
}
