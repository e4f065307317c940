// Parallel regions and loops, run by the OpenMP library that PyTorch has loaded: both share one set of threads.
//
// g++ and Apple's clang++ compile the pragmas for that library. Elsewhere clang++ would compile them for LLVM's, whose
// threads would compete with PyTorch's; so it is not asked to, and the functions of GNU's library that g++ would call
// are called here.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

extern "C" {
int omp_get_max_threads(void);
int omp_get_num_threads(void);
int omp_get_thread_num(void);
#if !defined(_OPENMP)
void GOMP_parallel(void (*run)(void*), void* data, unsigned n_threads, unsigned flags);
void GOMP_barrier(void);
#endif
}

namespace heed {

// The threads of a parallel region, as one of them sees it. All of them call the same loops in the same order; each
// loop ends when all threads have ended it.
class Team {
public:
    struct Counters {  // where the next thread goes on in a loop; the loop before has used the other one
        alignas(64) std::atomic<int64_t> next[2];
    };
    const int64_t size, index;  // how many threads, and which one this is

    Team() : size(1), index(0), counters_(nullptr) {}  // of one thread alone, be it inside a region
    explicit Team(Counters& counters)
        : size(omp_get_num_threads()), index(omp_get_thread_num()), counters_(&counters) {}

    // run(i) for each i below n: every thread takes a part of about the same size, the same one each time.
    template <class Run>
    void split(int64_t n, Run run) {
        const int64_t least = n / size, longer = n % size;
        const int64_t begin = index * least + std::min(index, longer), end = begin + least + (index < longer);
        for (int64_t i = begin; i < end; i++) run(i);
        barrier();
    }

    // run(i) for each i below n: threads take `chunk` of them in turn, each when it is done with its last ones.
    template <class Run>
    void share(int64_t n, int64_t chunk, Run run) {
        if (size > 1) {
            next_ = &counters_->next[n_loops_ % 2];
            counters_->next[++n_loops_ % 2].store(0, std::memory_order_relaxed);  // used again after the barrier
        }
        for (int64_t begin = 0, end = 0; (begin = take(end, n, chunk)) < n;) {
            end = size > 1 ? std::min(begin + chunk, n) : n;
            for (int64_t i = begin; i < end; i++) run(i);
        }
        barrier();
    }

private:
    void barrier() {
        if (size == 1) return;
#if defined(_OPENMP)
# pragma omp barrier
#else
        GOMP_barrier();
#endif
    }

    // Where a thread goes on in a loop; `end`: where it has ended.
    int64_t take(int64_t end, int64_t n, int64_t chunk) {
        return size > 1 ? next_->fetch_add(chunk, std::memory_order_relaxed) : std::min(end, n);
    }

    Counters* counters_;
    std::atomic<int64_t>* next_ = nullptr;
    unsigned n_loops_ = 0;
};

// run(team) in every thread. Each has its own copy of `run`, so that what it captures by value ([=]) stays in
// registers: the compiler need not fear that a kernel's results overwrite it.
template <class Run>
static void parallel(Run run) {
    Team::Counters counters = {};
    const auto region = [&] {
        const Run mine = run;
        Team team(counters);
        mine(team);
    };
#if defined(_OPENMP)
# pragma omp parallel
    region();
#else
    typedef decltype(region) Region;
    GOMP_parallel([](void* data) { (*static_cast<Region*>(data))(); },
                  const_cast<std::remove_const_t<Region>*>(&region), 0, 0);
#endif
}

struct Scratch {  // memory that grows; one a thread
    std::unique_ptr<float[]> memory;
    int64_t size = 0;
    float* take(int64_t n) {
        if (n > size) memory.reset(new float[size_t(size = n)]);
        return memory.get();
    }
};

}  // namespace heed
