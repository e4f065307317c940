// Steps of a beam search, many in one call: each takes all hypotheses through the decoder, chooses continuations and
// extends the account by them, as decoding/beam.py does step by step.

#include "beam_account.h"
#include "exports.h"
#include "threads.h"

namespace heed {

// Of a search's rows and sentences, what a step needs besides the account.
struct StepMemory {
    std::vector<int64_t> rows, lengths, n_allowed, indices, parents, ids, old_rows, old_states;
    std::vector<const int32_t*> allowed;
    std::vector<std::vector<int32_t>> fitting;  // of allowed ids, those that leave room for the rest of the prefix
    std::vector<uint8_t> may_end;
    std::vector<double> values;
    Aligned<float> x;
    std::vector<int32_t> old;

    StepMemory(int64_t n, int64_t beam, int64_t k, int64_t d_model)
        : rows(size_t(n * beam)),
          lengths(rows.size()),
          n_allowed(rows.size()),
          indices(size_t(n * k)),
          parents(size_t(k)),
          ids(size_t(k)),
          old_rows(size_t(beam)),
          old_states(size_t(beam)),
          allowed(rows.size()),
          fitting(rows.size()),
          may_end(size_t(n)),
          values(indices.size()),
          x(aligned<float>(n * beam * d_model)) {}
};

// Writes down which ids may follow a row in this state of its prefix, if n_left may follow them.
static void allow(const Prefix& prefix, int64_t state, int64_t n_left, int64_t row, StepMemory& memory) {
    const int64_t begin = prefix.begins[state], n = prefix.begins[state + 1] - begin;
    const int32_t* ids = prefix.ids + begin;
    memory.allowed[size_t(row)] = ids;
    memory.n_allowed[size_t(row)] = n;
    if (n_left >= prefix.end - state) return;  // an id leads to a later state
    std::vector<int32_t>& fitting = memory.fitting[size_t(row)];
    fitting.clear();
    for (int64_t i = 0; i < n; i++)
        if (prefix.needed[prefix.nexts[begin + i]] <= n_left) fitting.push_back(ids[i]);
    memory.allowed[size_t(row)] = fitting.data();
    memory.n_allowed[size_t(row)] = int64_t(fitting.size());
}

// The state to which an id leads.
static int64_t state_after(const Prefix& prefix, int64_t state, int64_t id) {
    if (state >= prefix.end) return state;
    const int32_t *const first = prefix.ids + prefix.begins[state], *const end = prefix.ids + prefix.begins[state + 1];
    const int32_t* const at = std::lower_bound(first, end, id);
    return at < end && *at == id ? prefix.nexts[at - prefix.ids] : state;
}

// Writes down which rows can still enter the n_best, and what may follow them. Returns how many they are.
static int64_t plan_step(const Search& search, const uint8_t* done, StepMemory& memory) {
    const BeamAccount& account = search.account;
    int64_t n_active = 0;
    for (int64_t s = 0; s < account.n_sentences; s++) {
        if (done[s]) continue;
        const int64_t length = account.lengths[s];
        const double min_penalty = search.rules.penalties[account.limits[s]];
        const double threshold = account.best_scores[(s + 1) * account.n_best - 1];
        const Prefix* const prefix = search.prefixes ? search.prefixes + s : nullptr;
        memory.may_end[size_t(s)] = length >= search.min_tokens;
        for (int64_t row = s * account.beam; row < (s + 1) * account.beam; row++) {
            memory.lengths[size_t(row)] = length;
            memory.allowed[size_t(row)] = nullptr;
            if (prefix && search.states[row] < prefix->end)
                allow(*prefix, search.states[row], account.limits[s] - length - 1, row, memory);
            if (account.log_probs[row] / min_penalty > threshold) memory.rows[size_t(n_active++)] = row;
        }
    }
    return n_active;
}

// Extends sentence s by its continuations, and gives its rows' slots the ancestors that they have from now on.
static bool extend_sentence(const Search& search, const Beams& beams, int64_t s, StepMemory& memory) {
    const BeamAccount& account = search.account;
    const int64_t beam = account.beam, k = search.k;
    for (int64_t c = 0; c < k; c++) {
        const int64_t index = memory.indices[size_t(s * k + c)];
        memory.parents[size_t(c)] = index / search.output.d_out;
        memory.ids[size_t(c)] = index % search.output.d_out;
        double& value = memory.values[size_t(s * k + c)];
        const int64_t row = s * beam + memory.parents[size_t(c)];
        if (search.prefixes && value > -INFINITY && search.states[row] < search.prefixes[s].n_given)
            value = account.log_probs[row];
    }
    SentenceAccount sentence{account, search.rules, s};
    const bool over = sentence.extend(memory.values.data() + s * k, memory.parents.data(), memory.ids.data(), k,
                                      memory.old_rows.data(), memory.old);
    if (search.prefixes) {
        int64_t* const states = search.states + s * beam;
        std::copy_n(states, beam, memory.old_states.data());
        for (int64_t b = 0; b < beam; b++)
            states[b] = state_after(search.prefixes[s], memory.old_states[size_t(memory.old_rows[size_t(b)])],
                                    account.last[s * beam + b]);
    }
    const int64_t* const slots = beams.slots + s * beam;
    for (int64_t b = 0; b < beam; b++) memory.parents[size_t(b)] = slots[memory.old_rows[size_t(b)]];
    reorder_ancestors(beams.ancestors, slots, memory.parents.data(), beam, beams.capacity, sentence.length, memory.old);
    return over;
}

template <class T>
static int64_t search_steps(const Step<T>& of_caller, const Search& search, uint8_t* done,
                            Status (*decoder_step)(const Step<T>*, float*)) {
    const BeamAccount& account = search.account;
    const int64_t n = account.n_sentences, beam = account.beam, k = search.k;
    StepMemory memory(n, beam, k, of_caller.d_model);
    Step<T> step = of_caller;
    step.tokens = account.last;
    step.beams.rows = memory.rows.data();
    step.beams.lengths = memory.lengths.data();
    std::fill_n(done, n, uint8_t(0));
    int64_t n_steps = 0, n_done = 0;
    const auto pauses = [&] {
        return n_steps >= search.least_steps &&
               (n_done >= search.most_done || (search.n_waiting && search.n_waiting->load(std::memory_order_relaxed)));
    };
    for (; n_steps < search.most_steps && n_done < n && !pauses(); n_steps++) {
        const int64_t n_rows = step.beams.n_rows = plan_step(search, done, memory);
        check(decoder_step(&step, memory.x.get()));
        product_continuations(memory.x.get(), search.output,
                              {memory.rows.data(), account.log_probs, memory.allowed.data(), memory.n_allowed.data(),
                               search.never, memory.may_end.data(), n_rows, n, beam, search.output.d_out, search.rules.eos, k},
                              memory.values.data(), memory.indices.data());
        for (int64_t s = 0; s < n; s++) {
            if (done[s]) continue;
            if (!(memory.values[size_t(s * k)] > -INFINITY)) return -1;  // also true for NaN
            done[s] = extend_sentence(search, step.beams, s, memory);
            n_done += done[s];
        }
    }
    return n_steps;
}

}  // namespace heed

extern "C" {
#define HEED_DEFINE(T, NAME)                                                                                         \
 heed::Status search_steps_##NAME(const heed::Step<T>* step, const heed::Search* search, uint8_t* done,              \
                                  int64_t* n_steps) {                                                                \
  return heed::status_of([&] {                                                                                       \
      const int64_t n_sentences = search->account.n_sentences, n_rows = n_sentences * search->account.beam;          \
      const auto steps = [&] { *n_steps = heed::search_steps(*step, *search, done, decoder_step_##NAME); };          \
      const bool few = heed::multiplications(*step, n_rows) <= heed::FEW_MULTIPLICATIONS;                            \
      if (few) return heed::PersistentTeam::alone(steps);                                                            \
      heed::PersistentTeam::with(heed::FastCores::suffice_for(n_rows, n_sentences == 1), steps);                     \
  });                                                                                                                \
 }
HEED_DEFINE(float, float)
HEED_DEFINE(heed::bf16, bf16)
#undef HEED_DEFINE

heed::Status extend_beams(const heed::BeamAccount* account, const heed::EndingRules* rules, const double* values,
                          const int64_t* parents, const int64_t* ids, int64_t k, int64_t* rows, uint8_t* done) {
    return heed::status_of([&] {
        std::vector<int32_t> old;
        for (int64_t s = 0; s < account->n_sentences; s++) {
            heed::SentenceAccount sentence{*account, *rules, s};
            done[s] = sentence.extend(values + s * k, parents + s * k, ids + s * k, k, rows + s * account->beam, old);
        }
    });
}
heed::Status reorder_ancestors(int32_t* ancestors, const int64_t* slots, const int64_t* parents, int64_t n_rows,
                               int64_t beam, int64_t capacity, int64_t n) {
    return heed::status_of([&] {
        std::vector<int32_t> old;
        for (int64_t first = 0; first < n_rows; first += beam)
            heed::reorder_ancestors(ancestors, slots + first, parents + first, beam, capacity, n, old);
    });
}
}
