// A search's step through all decoder layers in one call. A row is a hypothesis; `beam` consecutive rows belong to a
// sentence.

#include "layers.h"

namespace heed {

// The n listed rows through all layers.
template <int D, class Products>
static void run_layers(const Step<typename Products::Stored>& step, const Beams& beams,
                       const Workspace<Products>& space, int64_t n, ThreadTeam& team) {
    using T = typename Products::Stored;
    const Heads& heads = beams.heads;
    const int64_t qkv_width = heads.keys() + heads.kv();
    Scratch scratch;
    Sublayers<Products> run(step, space, n, team);
    run.embed(beams.rows);
    for (int64_t l = 0; l < step.n_layers; l++) {
        const DecoderLayer<T>& layer = step.layers[l];
        const float* projected = run.product(layer.qkv);
        run.attend(layer.self_out, layer.self_gain, layer.self_bias, [&](int64_t i, float* out) {
            attend_to_past<D>(projected + i * qkv_width, layer.cache, out, i, beams, scratch);
        });
        projected = run.product(layer.query);
        run.attend(layer.cross_out, layer.cross_gain, layer.cross_bias, [&](int64_t i, float* out) {
            attend_to_source<D>(projected + i * heads.keys(), layer.memories, out, i, beams, scratch);
        });
        run.feed_forward(layer);
    }
}

template <class Products>
static void decoder_step(const Step<typename Products::Stored>& step, float* x) {
    const int64_t n = step.beams.n_rows;
    const RowMemory<Products> memory(step, x);
    with_width(step.beams.heads.d_k, step.beams.heads.d_v, [&](auto width) {
        constexpr int D = decltype(width)::value;
        for_rows_by_team(n, n <= step.beams.beam, [&](int64_t first, int64_t some, ThreadTeam& team) {
            Beams beams = step.beams;
            beams.rows += first;
            run_layers<D, Products>(step, beams, memory.from(first), some, team);
        });
    });
}

static void panel_product(const float* x, const Weight& weight, float* y, int64_t n, bool relu) {
    const SplitMemory memory(n, weight.d_in);
    for_product_rows(n, weight, [&](int64_t first, int64_t some, ThreadTeam& team) {
        const SplitRows rows = memory.rows(first);
        const float* const from = x + first * weight.d_in;
        team.split(some, [&](int64_t i) { rows.take(i, from + i * weight.d_in, weight.d_in); });
        fp32_product(from, rows, weight, y + first * weight.d_out, some, relu, team);
    });
}

}  // namespace heed

extern "C" {
heed::Status packed_product(const float* x, const heed::Weight* weight, float* y, int64_t n, int32_t relu) {
    return heed::status_of([&] {
        if (weight->number_bytes == 4) return heed::panel_product(x, *weight, y, n, relu);
        heed::with_narrow_products(*weight, [&](auto products) {
            heed::narrow_product<typename decltype(products)::Type::Memory>(x, *weight, y, n, relu);
        });
    });
}
heed::Status decoder_step_float(const heed::Step<float>* step, float* x) {
    return heed::status_of([&] { heed::decoder_step<heed::Fp32Products>(*step, x); });
}
heed::Status decoder_step_bf16(const heed::Step<heed::bf16>* step, float* x) {
    return heed::status_of([&] {
        heed::with_narrow_products(step->layers[0].qkv, [&](auto products) {
            heed::decoder_step<typename decltype(products)::Type>(*step, x);
        });
    });
}
void use_threads(int32_t n) { omp_set_num_threads(n); }
void use_fast_cores(int64_t n, const int32_t* cpus, int64_t n_cpus) {
    heed::FastCores::n = n;
#if defined(__linux__)
    CPU_ZERO(&heed::FastCores::cpus);
    for (int64_t i = 0; i < n_cpus; i++)
        if (cpus[i] < CPU_SETSIZE) CPU_SET(cpus[i], &heed::FastCores::cpus);
#else
    (void)cpus, (void)n_cpus;
#endif
}
void search_team(int64_t n_rows, int32_t one_sentence, int64_t* n_threads, int64_t* n_cpus) {
    heed::parallel_rows(n_rows, one_sentence != 0, [&](heed::ThreadTeam& team) {
        if (team.index > 0) return;
        *n_threads = team.size;
#if defined(__linux__)
        cpu_set_t mine;
        *n_cpus = sched_getaffinity(0, sizeof(mine), &mine) ? 0 : CPU_COUNT(&mine);
#else
        *n_cpus = 0;
#endif
    });
}
int32_t has_int8() { return heed::HAS_INT8; }
int32_t largest_int8_weight() { return heed::LARGEST_INT8_WEIGHT; }
int32_t has_bf16() { return heed::HAS_BF16_DOT; }
}
