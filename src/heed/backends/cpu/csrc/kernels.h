// The exported functions and the structures that they take: their only declaration. Python reads this file and
// typed_kernels.h (declarations.py), so they keep to what C has, templates of T and one-line member functions aside.
// Python checks shapes, types and ranges before each call: nothing is checked in C++.
//
// Arguments stand in this order: inputs, outputs, sizes, options. Rows follow each other without gaps, unless a stride
// says otherwise. What returns a Status says whether it was done; what returns anything else cannot fail.

#pragma once

#include <atomic>

#include "vector.h"

namespace heed {

// Packed sequences: the rows of sequence s are offsets[s] to offsets[s + 1] - 1.
struct Shape {
    const int64_t *q_offsets, *k_offsets;
    int64_t n_sentences, n_heads, d_k, d_v, q_stride, k_stride, v_stride;
    uint64_t seed;  // of the dropout of attention weights
    float rate;
    int32_t causal;
};

// A weight matrix (d_out, d_in) in panels of 32 outputs, padded with zeros, and its bias, padded too. Panels are
// (panel, d_in, 32) in float, (panel, d_in / 2, 32, 2) in bf16, or (panel, d_in / 4, 32, 4) in 8-bit integers, which
// count steps of their output.
struct Weight {
    const void* panels;
    // Of 8-bit weights: -128 times the sum of each output's integers; or null, if they multiply rows without negative
    // numbers, to which 128 need not be added.
    const int32_t* offsets;
    const float *steps, *bias;
    int64_t d_in, d_out, number_bytes;  // of a number in the panels: 4, 2 or 1
};

struct Heads {
    int64_t n, d_k, d_v;
    int64_t keys() const { return n * d_k; }
    int64_t values() const { return n * d_v; }
    int64_t kv() const { return keys() + values(); }
};

// The state of a beam search. A row is a hypothesis, `beam` consecutive rows belong to a sentence; only the n_rows rows
// listed in `rows` are computed. ancestors[slot, position] is the slot whose cache holds this position of the slot's
// hypothesis, so that reordering a beam moves no keys.
struct Beams {
    int32_t* ancestors;                                   // (slot, position)
    const int64_t *rows, *slots, *lengths, *src_lengths;  // slots and lengths (its new position) by row, by sentence
    int64_t n_rows, beam, capacity;                       // capacity: positions in a slot
    Heads heads;
};

enum Activation { RELU, GELU, SWISH };

// NO_MEMORY: too little for what it computes. NOT_HERE: the library was compiled for a processor without it.
enum Status { DONE, NO_MEMORY, NOT_HERE };

// The norms are those behind the sums with each sub-layer's output; with pre-norm each belongs to the next sub-layer.
template <class T>
struct DecoderLayer {
    Weight qkv, self_out, query, cross_out, inner, outer;
    const T *self_gain, *self_bias, *cross_gain, *cross_bias, *feed_forward_gain, *feed_forward_bias;
    T* cache;                  // (slot, position, all heads' keys | values)
    const T* const* memories;  // by sentence: (source position, all heads' keys | values)
};

// The next position of every row through all decoder layers.
template <class T>
struct Step {
    const DecoderLayer<T>* layers;
    int64_t n_layers, d_model, d_ff;
    int64_t activation;                // an Activation
    int64_t first_word;                // the first position that has a word's embedding, not its position alone: 0 or 1
    const T *first_gain, *first_bias;  // with pre-norm: of the norm before the first sub-layer; else null
    const T *embedding_gain, *embedding_bias;  // of the norm of embeddings, or null
    Beams beams;
    const int64_t* tokens;
    const Weight* table;  // in 8-bit integers: its rows are the embeddings; or null
    const T *embedding, *positions;
    float scale, epsilon;  // of the embedding; of layer normalization
};

// Whole sentences: a Step's rows are their tokens, its lengths the places in their sentences. Sources have no
// cross-attention, and become memories; targets are causal, and attend to their layers' memories.
template <class T>
struct Sentences {
    const int64_t *offsets, *sentences;  // sentence s has the rows offsets[s] to offsets[s + 1] - 1; of each row
    int64_t n_sentences, n_memories;
    const Weight* kv;  // of every decoder layer's cross-attention
    T* memories;       // (decoder layer, row, all heads' keys | values)
    int32_t causal;
    float* weights;       // (decoder layer, row, src): the mean of all heads' cross-attention; or null
    int64_t longest_src;  // of the weights
};

// The hypotheses of a beam search: see backends/beam_account.py. width: the ids that there is room for.
struct BeamAccount {
    int64_t* lengths;
    const int64_t* limits;
    int64_t* n_ended;
    double* log_probs;
    int64_t* last;
    int32_t* history;
    double *best_scores, *best_log_probs;
    int64_t* best_lengths;
    int32_t* best_ids;
    int64_t n_sentences, beam, n_best, width;
};

struct EndingRules {
    const double* penalties;
    int64_t eos;
    int32_t early_stopping;
};

// What a target must begin with, as text/prefix.py describes it. In states below `end` the ids that may follow are
// ids[begins[state]] to ids[begins[state + 1]], ascending; nexts: the states that they lead to; needed, by state: the
// fewest ids that lead to the end. The first n_given are given: their probability is 1.
struct Prefix {
    const int64_t* begins;
    const int32_t *ids, *nexts, *needed;
    int64_t end, n_given;
};

// What a search needs besides a Step. prefixes (n_sentences), or null where no sentence has one; states (n_sentences,
// beam): how much of it each row has written; never, by id: whether no target may have it; min_tokens: before eos; k:
// continuations of a sentence. It takes at most most_steps; after least_steps it ends once most_done sentences are done
// or n_waiting, unless null, is not 0: a number that other threads change.
struct Search {
    BeamAccount account;
    EndingRules rules;
    Weight output;  // the output projection
    const Prefix* prefixes;
    int64_t* states;
    const uint8_t* never;
    int64_t min_tokens, k, most_steps, least_steps, most_done;
    const std::atomic<int64_t>* n_waiting;
};

}  // namespace heed

#define HEED_EXPORT __attribute__((visibility("default")))

extern "C" {
#define T float
#define KERNEL(NAME) NAME##_float
#include "typed_kernels.h"
#undef KERNEL
#undef T

#define T heed::bf16
#define KERNEL(NAME) NAME##_bf16
#include "typed_kernels.h"
#undef KERNEL
#undef T

// y = x · Wᵀ + bias, with ReLU or without; x (n, d_in). Weights in bf16 and 8 bits only if has_bf16(), has_int8().
HEED_EXPORT heed::Status packed_product(const float* x, const heed::Weight* weight, float* y, int64_t n, int32_t relu);
// Of each sentence the k best continuations: see continuations.h.
HEED_EXPORT heed::Status best_continuations(const float* logits, const int64_t* rows, const double* log_probs,
                                            const int32_t* const* allowed, const int64_t* n_allowed,
                                            const uint8_t* never, const uint8_t* may_end, double* values,
                                            int64_t* indices, int64_t n_rows, int64_t n_sentences, int64_t beam,
                                            int64_t vocab, int64_t eos, int64_t k);
// An id for each row, drawn by its number in [0, 1): see Distribution in draw.h. The rest as best_continuations takes it.
HEED_EXPORT heed::Status draw(const float* logits, const double* numbers, const int32_t* const* allowed,
                              const int64_t* n_allowed, const uint8_t* never, const uint8_t* may_end, int64_t* ids,
                              double* log_probs, int64_t n_rows, int64_t beam, int64_t vocab, int64_t eos, int64_t top_k,
                              double top_p, double temperature);
// y (n_rows, n_ids): the log-probabilities of these ids, -infinity for those below 0.
HEED_EXPORT heed::Status log_probs_of(const float* logits, const int64_t* ids, double* y, int64_t n_rows, int64_t n_ids,
                                      int64_t vocab);
// y (n_rows, vocab): the logarithm of the sum of the models' probabilities; the logits of each model.
HEED_EXPORT heed::Status mean_logits(const float* const* logits, float* y, int64_t n_models, int64_t n_rows,
                                     int64_t vocab);
// c (m, n) = a (m, depth) · b (depth, n) + bias in bf16, or with `add` c += a · b, c in float. a is stored as (depth,
// m) if a_transposed, b as (depth, n) if b_transposed, else as (n, depth). Only if has_tiles().
HEED_EXPORT heed::Status tile_product(const heed::bf16* a, int64_t a_ld, int32_t a_transposed, const heed::bf16* b,
                                      int64_t b_ld, int32_t b_transposed, const heed::bf16* bias, void* c, int64_t c_ld,
                                      int64_t m, int64_t n, int64_t depth, int32_t add);
// sum += x of n numbers; Adam's step on n weights: see optimizer.h.
HEED_EXPORT void add_gradient(const heed::bf16* x, float* sum, int64_t n);
HEED_EXPORT void adam_step(float* weights, float* means, float* squares, float* gradients, heed::bf16* copy, int64_t n,
                           float rate, float root, float beta1, float beta2, float epsilon);
// Extends every row by one of the k continuations of its sentence. rows (n_sentences, beam): which row each was; done
// (n_sentences): whether the sentence's search is over.
HEED_EXPORT heed::Status extend_beams(const heed::BeamAccount* account, const heed::EndingRules* rules,
                                      const double* values, const int64_t* parents, const int64_t* ids, int64_t k,
                                      int64_t* rows, uint8_t* done);
// Reorders a beam: see beam_account.h.
HEED_EXPORT heed::Status reorder_ancestors(int32_t* ancestors, const int64_t* slots, const int64_t* parents,
                                           int64_t n_rows, int64_t beam, int64_t capacity, int64_t n);
// Lets the calling thread's later calls take n threads.
HEED_EXPORT void use_threads(int32_t n);
// Lets a search of few rows, or of one sentence, take no more threads than there are fast cores, n, and keeps these on
// the listed CPUs; 0: all cores are alike.
HEED_EXPORT void use_fast_cores(int64_t n, const int32_t* cpus, int64_t n_cpus);
// The number of threads that share a search's step of n_rows rows, and of the CPUs that they may use; 0 if the system
// does not say.
HEED_EXPORT void search_team(int64_t n_rows, int32_t one_sentence, int64_t* n_threads, int64_t* n_cpus);
// Whether the processor has fast products of 8-bit integers, of bf16, and of tiles.
HEED_EXPORT int32_t has_int8();
HEED_EXPORT int32_t has_bf16();
HEED_EXPORT int32_t has_tiles();
// The largest 8-bit weight, in whole steps, whose sums are exact; if it is less than 127, it is 127 nevertheless for
// weights without offsets.
HEED_EXPORT int32_t largest_int8_weight();
// The index of the first of n numbers that is below `least` or not below `end`, or -1.
HEED_EXPORT int64_t first_outside(const int64_t* numbers, int64_t n, int64_t least, int64_t end);
}
