// An id drawn from a row's probabilities, by inverting their distribution at a number in [0, 1).

#pragma once

#include <algorithm>
#include <vector>

#include "row_math.h"

namespace heed {

// The ids that a row may take, the most probable first, of equal ones the smaller: of these the first top_k (0: all),
// and no more once those before have the probability top_p; temperature divides the logits. Only as many are put in
// order as a draw walks past.
class Distribution {
public:
    Distribution(int64_t vocab, int64_t eos, const uint8_t* never, int64_t top_k, double top_p, double temperature)
        : vocab(vocab), eos(eos), top_k(top_k), top_p(top_p), temperature(temperature), never(never) {}

    // Reads a row's logits; allowed: the ids that it may take, or null for any; ends: whether eos is one of them.
    void read(const float* z, const int32_t* allowed, int64_t n_allowed, bool ends) {
        logits = z;
        heap.clear();
        const auto consider = [&](int64_t id) {
            if (!never[id] && (id != eos || ends)) heap.push_back({double(z[id]), id});
        };
        if (allowed)
            for (int64_t i = 0; i < n_allowed; i++) consider(allowed[i]);
        else
            for (int64_t id = 0; id < vocab; id++) consider(id);
        double top = -INFINITY;
        for (const Entry& entry : heap) top = std::max(top, entry.weight);
        total = 0;
        for (Entry& entry : heap) total += entry.weight = std::exp((entry.weight - top) / temperature);
        std::make_heap(heap.begin(), heap.end());
    }

    // The id at this number; its log-probability among all ids, before the temperature. NaN if that is not a number.
    int64_t draw(double number, double* log_prob) {
        double kept = total;
        ordered.clear();
        if (top_k || top_p < 1) {
            kept = 0;
            for (bool more = !heap.empty(); more;) {
                kept += next();
                more = !heap.empty() && int64_t(ordered.size()) != top_k && kept < top_p * total;
            }
            heap.clear();
        }
        size_t i = 0;
        double sum = 0;
        int64_t id = 0;
        *log_prob = NAN;
        while (!(sum > number * kept) && (i < ordered.size() || !heap.empty())) {
            if (i == ordered.size()) next();
            sum += ordered[i].weight;
            id = ordered[i++].id;
        }
        if (sum > 0) *log_prob = double(logits[id]) - log_sum(logits, vocab);
        return id;
    }

private:
    struct Entry {
        double weight;
        int64_t id;
        bool operator<(const Entry& other) const {
            return weight < other.weight || (weight == other.weight && id > other.id);
        }
    };
    // Moves the first of the heap behind those in order.
    double next() {
        std::pop_heap(heap.begin(), heap.end());
        ordered.push_back(heap.back());
        heap.pop_back();
        return ordered.back().weight;
    }
    const int64_t vocab, eos, top_k;
    const double top_p, temperature;
    const uint8_t* const never;
    const float* logits = nullptr;
    double total = 0;
    std::vector<Entry> heap, ordered;
};

}  // namespace heed
