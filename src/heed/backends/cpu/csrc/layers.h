// What the encoder's and the decoder's layers do to rows in a search, without gradients.
//
// In float and in 8-bit integers a row's result never depends on the other rows, to the last bit: its sums are taken in
// one order, whatever is computed next to it and however many threads share the work.

#pragma once

#include "bf16_products.h"
#include "cached_attention.h"
#include "fp32_products.h"
#include "int8_products.h"
#include "row_math.h"

namespace heed {

// Products are in float with weights, keys and values in float, or in bf16 or 8-bit integers with keys and values in
// bf16, which is Stored; everything between them is float. Memory and Rows are as HoldsRows describes them.
// product(rows, weight, y, n, relu, team) multiplies the first n rows, which were taken before.
template <class Products, class = void>
struct Multiplies : std::false_type {};
template <class Products>
struct Multiplies<
    Products, std::void_t<typename Products::Stored, decltype(typename Products::Memory(int64_t(), int64_t()).rows()),
                          decltype(Products(std::declval<typename Products::Rows>())
                                       .take(int64_t(), (const float*)nullptr, int64_t())),
                          decltype(Products(std::declval<typename Products::Rows>())
                                       .product((const float*)nullptr, std::declval<const Weight&>(), (float*)nullptr,
                                                int64_t(), bool(), std::declval<ThreadTeam&>()))>> : std::true_type {};

struct Fp32Products {
    using Stored = float;
    using Memory = SplitMemory;
    using Rows = SplitRows;
    const Rows x;
    explicit Fp32Products(Rows rows) : x(rows) {}
    void take(int64_t i, const float* row, int64_t d_in, bool by_null_offsets = false) const {
        x.take(i, row, d_in, by_null_offsets);
    }
    void product(const float* rows, const Weight& weight, float* y, int64_t n, bool relu, ThreadTeam& team) const {
        fp32_product(rows, x, weight, y, n, relu, team);
    }
};

template <class NarrowMemory>
struct LowPrecisionProducts {
    using Stored = bf16;
    using Memory = NarrowMemory;
    using Rows = decltype(std::declval<Memory>().rows());
    const Rows x;
    explicit LowPrecisionProducts(Rows rows) : x(rows) {}
    void take(int64_t i, const float* row, int64_t d_in, bool by_null_offsets = false) const {
        x.take(i, row, d_in, by_null_offsets);
    }
    void product(const float*, const Weight& weight, float* y, int64_t n, bool relu, ThreadTeam& team) const {
        rows_product(x, weight, y, n, relu, team);
    }
};

static_assert(Multiplies<Fp32Products>::value);
static_assert(Multiplies<LowPrecisionProducts<Bf16Memory>>::value && Multiplies<LowPrecisionProducts<QuantizedMemory>>::value);

template <class Products>
struct Named {  // a value that names a type
    using Type = Products;
};

// Calls run(Named<the products that take these weights>()), which are in bf16 or in 8-bit integers.
template <class Run>
static void with_narrow_products(const Weight& weight, Run run) {
    if constexpr (HAS_BF16_DOT) {
        if (weight.number_bytes == 2) return run(Named<LowPrecisionProducts<Bf16Memory>>());
    }
    if constexpr (HAS_INT8) {
        if (weight.number_bytes == 1) return run(Named<LowPrecisionProducts<QuantizedMemory>>());
    }
    throw NotHere();
}

// What the layers write to. Each row has its own part of each, whatever the width of the products that are stored
// there.
template <class Products>
struct Workspace {
    float *x, *wide, *attended, *branch;
    float* sum;  // of all sub-layers so far: x itself, unless with pre-norm
    typename Products::Rows rows;
};

// Memory for the rows of a step, of which each thread takes some or all threads take all.
template <class Products>
class RowMemory {
public:
    RowMemory(const Step<typename Products::Stored>& step, float* x)
        : d_(step.d_model),
          n_(step.beams.n_rows),
          heads_(step.beams.heads),
          widest_(std::max({step.d_ff, heads_.keys() + heads_.kv(), d_})),
          has_sum_(step.first_gain != nullptr),
          x_(x),
          floats_(aligned<float>(n_ * (widest_ + heads_.values() + d_ + (has_sum_ ? d_ : 0)))),
          rows_(n_, widest_) {}

    // Of the rows from `first` on.
    Workspace<Products> from(int64_t first) const {
        float* const wide = floats_.get();
        float *const attended = wide + n_ * widest_, *const branch = attended + n_ * heads_.values();
        float* const sum = has_sum_ ? branch + n_ * d_ : x_;
        return {x_ + first * d_,     wide + first * widest_, attended + first * heads_.values(),
                branch + first * d_, sum + first * d_,       rows_.rows(first)};
    }

private:
    const int64_t d_, n_;
    const Heads heads_;
    const int64_t widest_;
    const bool has_sum_;
    float* const x_;
    const Aligned<float> floats_;
    const typename Products::Memory rows_;
};

// Sub-layers of n rows, with a team of threads or by one alone.
template <class Products>
class Sublayers {
    using T = typename Products::Stored;

public:
    Sublayers(const Step<T>& step, const Workspace<Products>& space, int64_t n, ThreadTeam& team)
        : step_(step),
          heads_(step.beams.heads),
          space_(space),
          products_(space.rows),
          n_(n),
          d_(step.d_model),
          team_(team) {}

    // The sum of every row's embedding and position, normalised where the network has a norm; rows: their numbers.
    void embed(const int64_t* rows) {
        team_.split(n_, [&](int64_t i) {
            const int64_t row = rows[i], place = step_.beams.lengths[row];
            const T* const position = step_.positions + place * d_;
            const float scale = place < step_.first_word ? 0 : step_.scale;
            float* const sum = space_.sum + i * d_;
            const auto add_position = [&](auto word) {
                for (int32_t j = 0; j < d_; j++) sum[j] = word(j) * scale + to_float(position[j]);
            };
            if (step_.table) {
                const Int8Row word(*step_.table, step_.tokens[row]);
                add_position([&](int32_t j) { return word[j]; });
            } else {
                const T* const word = step_.embedding + step_.tokens[row] * d_;
                add_position([&](int32_t j) { return to_float(word[j]); });
            }
            if (step_.embedding_gain) normalize(sum, step_.embedding_gain, step_.embedding_bias);
            if (step_.first_gain) norm(i, step_.first_gain, step_.first_bias);
            products_.take(i, space_.x + i * d_, d_);
        });
    }

    // The product of what was taken last.
    const float* product(const Weight& weight) {
        products_.product(space_.x, weight, space_.wide, n_, false, team_);
        return space_.wide;
    }

    // run(i, out) attends with row i's query; then come the product, the sum and its norm.
    template <class Run>
    void attend(const Weight& out, const T* gain, const T* bias, Run run) {
        team_.split(n_, [&](int64_t i) {
            float* const attended = space_.attended + i * heads_.values();
            run(i, attended);
            products_.take(i, attended, heads_.values());
        });
        products_.product(space_.attended, out, space_.branch, n_, false, team_);
        add_norm(gain, bias);
    }

    void feed_forward(const DecoderLayer<T>& layer) {
        products_.product(space_.x, layer.inner, space_.wide, n_, step_.activation == RELU, team_);
        team_.split(n_, [&](int64_t i) {
            float* const row = space_.wide + i * step_.d_ff;
            switch (Activation(step_.activation)) {
                case RELU:
                    break;  // by the product
                case GELU:
                    apply(gelu, row, step_.d_ff);
                    break;
                case SWISH:
                    apply(swish, row, step_.d_ff);
                    break;
            }
            products_.take(i, row, step_.d_ff, !layer.outer.offsets);
        });
        products_.product(space_.wide, layer.outer, space_.branch, n_, false, team_);
        add_norm(layer.feed_forward_gain, layer.feed_forward_bias);
    }

private:
    void add_norm(const T* gain, const T* bias) {
        team_.split(n_, [&](int64_t i) {
            for (int64_t j = i * d_; j < (i + 1) * d_; j++) space_.sum[j] += space_.branch[j];
            norm(i, gain, bias);
            products_.take(i, space_.x + i * d_, d_);
        });
    }

    void norm(int64_t i, const T* gain, const T* bias) {  // of row i's sum
        float* const row = space_.x + i * d_;
        if (space_.sum != space_.x) std::copy_n(space_.sum + i * d_, d_, row);
        normalize(row, gain, bias);
    }

    void normalize(float* row, const T* gain, const T* bias) {
        const Moments of = moments(row, d_, step_.epsilon);
        for (int32_t j = 0; j < d_; j++) row[j] = (row[j] - of.mean) * of.rstd * to_float(gain[j]) + to_float(bias[j]);
    }

    const Step<T>& step_;
    const Heads& heads_;
    const Workspace<Products>& space_;
    const Products products_;
    const int64_t n_, d_;
    ThreadTeam& team_;
};

}  // namespace heed
