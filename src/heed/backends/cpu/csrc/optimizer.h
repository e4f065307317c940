// What a step does with the gradients of all weights, in few passes over memory, which is what it waits for.

#pragma once

#include "threads.h"
#include "vector.h"

namespace heed {

// run(from, n) for pieces of n numbers, which the threads share.
template <class Run>
static void in_pieces(int64_t n, Run run) {
    constexpr int64_t PIECE = 1 << 14;
    parallel([&](ThreadTeam& team) {
        team.split_last((n + PIECE - 1) / PIECE, [&](int64_t p) { run(p * PIECE, std::min(PIECE, n - p * PIECE)); });
    });
}

// sum += x
static void add_gradient(const bf16* x, float* sum, int64_t n) {
    in_pieces(n, [=](int64_t from, int64_t some) {
        for (int64_t j = from; j < from + some; j += LANES) {
            const int64_t left = from + some - j;
            store_first(load_first(sum + j, left) + load_first(x + j, left), sum + j, left);
        }
    });
}

// Adam (Kingma & Ba's algorithm 1) on n weights; afterwards the gradients are zero, and `copy`, if there is one, holds
// the weights in bf16. rate: the learning rate, divided by 1 - β1^step. root: of 1 - β2^step.
static void adam_step(float* weights, float* means, float* squares, float* gradients, bf16* copy, int64_t n, float rate,
                      float root, float beta1, float beta2, float epsilon) {
    in_pieces(n, [=](int64_t from, int64_t some) {
        for (int64_t j = from; j < from + some; j += LANES) {
            const int64_t left = from + some - j;
            const Floats g = load_first(gradients + j, left);
            const Floats mean = load_first(means + j, left) * beta1 + g * (1 - beta1);
            const Floats square = load_first(squares + j, left) * beta2 + g * g * (1 - beta2);
            const Floats weight = load_first(weights + j, left) - rate * mean / (square_root(square) / root + epsilon);
            store_first(mean, means + j, left);
            store_first(square, squares + j, left);
            store_first(weight, weights + j, left);
            store_first(Floats{}, gradients + j, left);
            if (copy) store_first(weight, copy + j, left);
        }
    });
}

}  // namespace heed
