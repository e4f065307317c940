// Dropout without stored masks: what is dropped is a function of the seed and the element's index.

#pragma once

#include "vector.h"

namespace heed {

// 32 random bits for element `index` of the dropout numbered `seed` (two rounds of multiply and shift: lowbias32 by
// Chris Wellons). Forward and backward pass draw the same bits, so that no mask is kept.
template <class X>  // one number, or a vector of them
[[gnu::always_inline]] static inline X random_bits(X index, uint32_t key0, uint32_t key1) {
    X x = index + key0;
    x ^= x >> 16;
    x *= 0x7feb352dU;
    x ^= (x >> 15) ^ key1;
    x *= 0x846ca68bU;
    x ^= x >> 16;
    return x;
}

struct Dropout {
    uint32_t key0, key1, n_dropped;  // of 2^32
    float scale;
    Dropout(uint64_t seed, float rate)
        : key0(uint32_t(seed)),
          key1(uint32_t(seed >> 32)),
          n_dropped(uint32_t(double(rate) * 4294967296.0)),
          scale(1.0f / (1.0f - rate)) {}
    // For column j of the row whose first element has this index.
    float factor(uint32_t first, int32_t j) const {
        return random_bits(first + uint32_t(j), key0, key1) < n_dropped ? 0.0f : scale;
    }
    // For as many columns from j on as a vector has lanes: compilers turn the other into vectors in some loops only.
    Floats factors(uint32_t first, int64_t j) const {
        const Bits bits = random_bits(as_bits(lane_numbers()) + (first + uint32_t(j)), key0, key1);
        return bit_cast<Floats>(bit_cast<Bits>(bits >= n_dropped) & bit_cast<uint32_t>(scale));
    }
};

}  // namespace heed
