// Parallel regions and loops, run by the OpenMP library that PyTorch has loaded: both share one set of threads.
//
// On Linux that is GNU's library (libgomp), on macOS LLVM's (libomp). g++ and Apple's clang++ compile OpenMP's pragmas
// for these. clang++ on Linux would compile them for LLVM's library, whose threads would compete with PyTorch's, so
// there OpenMP is off and libgomp is called directly, as g++ would call it.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

extern "C" {
int omp_get_max_threads(void);
void omp_set_num_threads(int);
int omp_get_num_threads(void);
int omp_get_thread_num(void);
#if !defined(_OPENMP)
void GOMP_parallel(void (*run)(void*), void* data, unsigned n_threads, unsigned flags);
void GOMP_barrier(void);
#endif
}

namespace heed {

// The threads of a parallel region, as seen by one of them. All threads must call the same loops in the same order. A
// loop returns when every thread has finished it; one that is called `_last` returns at once, since the end of the
// region waits for all threads anyway (a second wait per kernel cost 10 % of a training step of tiny on two cores).
class Team {
public:
    struct Counters {  // the next index of a loop; consecutive loops alternate between the two
        alignas(64) std::atomic<int64_t> next[2];
    };
    const int64_t size, index;  // how many threads, and which one this is

    Team() : size(1), index(0), counters_(nullptr) {}  // a single thread, which waits for nobody
    explicit Team(Counters& counters)
        : size(omp_get_num_threads()), index(omp_get_thread_num()), counters_(&counters) {}

    // Calls run(i) for each i below n. The threads get contiguous parts of equal size, the same ones in every call.
    template <class Run>
    void split(int64_t n, Run run) {
        split_last(n, run);
        barrier();
    }
    template <class Run>
    void split_last(int64_t n, Run run) {
        const int64_t least = n / size, longer = n % size;
        const int64_t begin = index * least + std::min(index, longer), end = begin + least + (index < longer);
        for (int64_t i = begin; i < end; i++) run(i);
    }

    // Calls run(i) for each i below n. A thread takes the next `chunk` indices whenever it has finished its last ones.
    template <class Run>
    void share(int64_t n, int64_t chunk, Run run) {
        share_last(n, chunk, run);
        barrier();
    }
    template <class Run>
    void share_last(int64_t n, int64_t chunk, Run run) {
        if (size > 1) {
            next_ = &counters_->next[n_loops_ % 2];
            counters_->next[++n_loops_ % 2].store(0, std::memory_order_relaxed);  // used again after the barrier
        }
        for (int64_t begin = 0, end = 0; (begin = take(end, n, chunk)) < n;) {
            end = size > 1 ? std::min(begin + chunk, n) : n;
            for (int64_t i = begin; i < end; i++) run(i);
        }
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

    // The next index for this thread, whose last chunk ended at `end`.
    int64_t take(int64_t end, int64_t n, int64_t chunk) {
        return size > 1 ? next_->fetch_add(chunk, std::memory_order_relaxed) : std::min(end, n);
    }

    Counters* counters_;
    std::atomic<int64_t>* next_ = nullptr;
    unsigned n_loops_ = 0;
};

// Calls run(team) in every thread. Each thread has its own copy of `run`: what it captures by value ([=]) can stay in
// registers, because the compiler knows that no store through a kernel's pointers changes it.
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

struct Free {
    void operator()(void* memory) const { free(memory); }
};
// Memory that begins at a line of the cache, so that no vector lies in two.
template <class T>
using Aligned = std::unique_ptr<T[], Free>;
template <class T>
static Aligned<T> aligned(int64_t n) {
    void* const memory = aligned_alloc(64, size_t(n * int64_t(sizeof(T)) / 64 + 1) * 64);
    if (!memory) throw std::bad_alloc();
    return Aligned<T>(static_cast<T*>(memory));
}

template <class T>
struct Growing {  // memory that grows
    Aligned<T> memory;
    int64_t size = 0;
    T* take(int64_t n) {
        if (n > size) {
            size = 0;
            memory.reset();
            memory = aligned<T>(n);
            size = n;
        }
        return memory.get();
    }
};
using Scratch = Growing<float>;  // one a thread

}  // namespace heed
