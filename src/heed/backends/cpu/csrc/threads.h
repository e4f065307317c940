// Parallel regions and loops, run by the OpenMP library that PyTorch has loaded: both share one set of threads.
//
// On Linux that is GNU's library (libgomp), on macOS LLVM's (libomp). g++ and Apple's clang++ compile OpenMP's pragmas
// for these. clang++ on Linux would compile them for LLVM's library, whose threads would compete with PyTorch's, so
// there OpenMP is off and libgomp is called directly, as g++ would call it.
//
// A search takes its steps with a PersistentTeam: one parallel region for all of them, in which the threads wait for each other
// by a barrier of our own. In a server every search has its own team. libgomp then counts more threads than cores and
// lets them sleep after a few microseconds; waking one takes as long as part of a step.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <thread>

#if defined(__x86_64__)
# include <immintrin.h>
#endif
#if defined(__linux__)
# include <linux/futex.h>
# include <sched.h>
# include <sys/syscall.h>
# include <unistd.h>
# include <climits>
#endif

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

// A counter that threads wait on. They spin briefly, then (on Linux) sleep, so that other programs get the cores.
class Signal {
public:
    // Waits until the number is not `old` any more.
    void wait(uint32_t old) {
        using Clock = std::chrono::steady_clock;
        const auto end = Clock::now() + std::chrono::microseconds(10);
        while (Clock::now() < end) {
            for (int i = 0; i < 32; i++) {
                if (number_.load(std::memory_order_acquire) != old) return;
#if defined(__x86_64__)
                _mm_pause();
#elif defined(__aarch64__)
                __asm__ volatile("isb");
#endif
            }
        }
        n_asleep_.fetch_add(1);
        while (number_.load() == old) {
#if defined(__linux__)
            syscall(SYS_futex, &number_, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
#else
            std::this_thread::yield();
#endif
        }
        n_asleep_.fetch_sub(1);
    }
    void raise() {
        number_.fetch_add(1);
#if defined(__linux__)
        if (n_asleep_.load()) syscall(SYS_futex, &number_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
    }
    uint32_t number() const { return number_.load(std::memory_order_relaxed); }

private:
    alignas(64) std::atomic<uint32_t> number_{0};
    std::atomic<int32_t> n_asleep_{0};
};

class Barrier {
public:
    void wait(int64_t n_threads) {
        const uint32_t round = rounds_.number();
        if (n_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < n_threads) {
            rounds_.wait(round);
        } else {
            n_arrived_.store(0, std::memory_order_relaxed);
            rounds_.raise();
        }
    }

private:
    alignas(64) std::atomic<int64_t> n_arrived_{0};
    Signal rounds_;
};

// The threads of a parallel region, as seen by one of them. All threads must call the same loops in the same order. A
// loop returns when every thread has finished it; one that is called `_last` returns at once, since the end of the
// region waits for all threads anyway (a second wait per kernel cost 10 % of a training step of tiny on two cores).
class ThreadTeam {
public:
    static constexpr int64_t PIECES_PER_THREAD = 4;  // of a loop's work, if there is enough

    // What the threads of a region share. An exception in one of them may not leave the region, and the others must not
    // wait for it: it is kept until the region ends, and the loops that are left do nothing but wait. Whatever can
    // throw therefore stands in a loop, or in a region without waits after it.
    struct Shared {
        alignas(64) std::atomic<int64_t> next[2];  // index of a loop; consecutive loops alternate between the two
        std::atomic<bool> failed;
        std::exception_ptr failure;  // of the first thread that failed

        template <class Run>
        void keep_failure(Run run) {
            try {
                run();
            } catch (...) {
                if (!failed.exchange(true)) failure = std::current_exception();
            }
        }
        void rethrow() const {
            if (failure) std::rethrow_exception(failure);
        }
    };
    const int64_t size, index;  // how many threads, and which one this is

    ThreadTeam() : size(1), index(0), shared_(nullptr) {}  // a single thread, which waits for nobody
    explicit ThreadTeam(Shared& shared) : size(omp_get_num_threads()), index(omp_get_thread_num()), shared_(&shared) {}
    ThreadTeam(Shared& shared, Barrier& barrier, int64_t size_of_team, int64_t index_in_team)
        : size(size_of_team), index(index_in_team), shared_(&shared), barrier_(&barrier) {}

    // Calls run(i) for each i below n. Nothing is dealt: a thread takes the next few indices whenever it has finished its
    // last ones, so that all finish at the same time on cores that are not equally fast, or that other programs use.
    template <class Run>
    void split(int64_t n, Run run) {
        share(n, few_of(n), run);
    }
    template <class Run>
    void split_last(int64_t n, Run run) {
        share_last(n, few_of(n), run);
    }

    // The same with `chunk` indices at a time; each thread takes them in ascending order.
    template <class Run>
    void share(int64_t n, int64_t chunk, Run run) {
        unless_failed([&] { share_last(n, chunk, run); });
        barrier();
    }
    template <class Run>
    void share_last(int64_t n, int64_t chunk, Run run) {
        if (shared_ && size > 1) {
            next_ = &shared_->next[n_loops_ % 2];
            shared_->next[++n_loops_ % 2].store(0, std::memory_order_relaxed);  // used again after the barrier
        }
        for (int64_t begin = 0, end = 0; (begin = take(end, n, chunk)) < n;) {
            end = size > 1 ? std::min(begin + chunk, n) : n;
            for (int64_t i = begin; i < end; i++) run(i);
        }
    }

    // In how many pieces, at most `most`, work is best divided that the threads take.
    int64_t pieces(int64_t most) const { return size == 1 ? 1 : std::clamp<int64_t>(most, 1, PIECES_PER_THREAD * size); }

private:
    // Of n indices, as many as a thread takes at a time.
    int64_t few_of(int64_t n) const { return std::max(int64_t(1), n / (PIECES_PER_THREAD * size)); }

    template <class Run>
    void unless_failed(Run run) {
        if (!shared_) return run();  // to the region that this single thread stands in
        if (!shared_->failed.load(std::memory_order_relaxed)) shared_->keep_failure(run);
    }

    void barrier() {
        if (size == 1) return;
        if (barrier_) {
            barrier_->wait(size);
            return;
        }
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

    Shared* shared_;
    Barrier* barrier_ = nullptr;  // else the region's
    std::atomic<int64_t>* next_ = nullptr;
    unsigned n_loops_ = 0;
};

// Calls region() in every thread.
template <class Region>
static void open_region(Region& region) {
#if defined(_OPENMP)
# pragma omp parallel
    region();
#else
    GOMP_parallel([](void* data) { (*static_cast<Region*>(data))(); }, &region, 0, 0);
#endif
}

// The cores for performance, where the processor has others for efficiency beside them; none where all are alike.
// Threads that share every product wait for the slowest, so that a few rows are finished sooner without the slow cores.
struct FastCores {
    static constexpr int64_t MIN_ROWS_PER_CORE = 16;  // from which on the slow cores are a help
    static inline int64_t n = 0;
#if defined(__linux__)
    static inline cpu_set_t cpus;
#endif
    static bool suffice_for(int64_t n_rows, bool one_sentence) {
        return n && (one_sentence || n_rows < MIN_ROWS_PER_CORE * n);
    }
};

// Keeps the calling thread on fast cores as long as this exists, within the CPUs that it might use before.
class OnFastCores {
public:
#if defined(__linux__)
    explicit OnFastCores(bool wanted) {
        if (!wanted || sched_getaffinity(0, sizeof(before_), &before_)) return;
        cpu_set_t both;
        CPU_AND(&both, &before_, &FastCores::cpus);
        moved_ = CPU_COUNT(&both) && !sched_setaffinity(0, sizeof(both), &both);
    }
    ~OnFastCores() {
        if (moved_) sched_setaffinity(0, sizeof(before_), &before_);
    }

private:
    cpu_set_t before_;
    bool moved_ = false;
#else
    explicit OnFastCores(bool) {}
#endif
    OnFastCores(const OnFastCores&) = delete;
};

// Threads that stay together while one of them works, and join it in the regions that it opens meanwhile.
class PersistentTeam {
public:
    // Calls work(), with as many threads to join in as there may be, or with those for the fast cores.
    template <class Work>
    static void with(bool on_fast_cores, Work work) {
        if (omp_get_max_threads() == 1) return alone(work);
        PersistentTeam team;
        // Searches that run at the same time need all cores: the first alone is kept on the fast ones.
        const bool kept = on_fast_cores && n_on_fast_cores_.fetch_add(1) == 0;
        std::exception_ptr failure;
        auto region = [&] {
            const int64_t index = omp_get_thread_num(), n_threads = omp_get_num_threads();
            const int64_t size = on_fast_cores ? std::min(n_threads, FastCores::n) : n_threads;
            if (index >= size) return;
            const OnFastCores place(kept);
            if (index > 0) return team.follow(index);
            try {
                team.lead(size, work);
            } catch (...) {
                failure = std::current_exception();
            }
            team.announce(nullptr, nullptr);
        };
        open_region(region);
        if (on_fast_cores) n_on_fast_cores_.fetch_sub(1);
        if (failure) std::rethrow_exception(failure);
    }

    // Calls work(), whose regions this thread runs without waking another.
    template <class Work>
    static void alone(Work work) {
        PersistentTeam().lead(1, work);
    }

    static inline thread_local PersistentTeam* current = nullptr;  // the one that this thread leads
    int64_t size() const { return size_; }

    template <class Run>
    void run(const Run& run) {
        struct Job {
            const Run& run;
            ThreadTeam::Shared shared;
        } job{run, {}};
        const auto part = [](void* data, PersistentTeam& persistent, int64_t index) {
            Job& job = *static_cast<Job*>(data);
            const Run mine = job.run;
            ThreadTeam team(job.shared, persistent.barrier_, persistent.size_, index);
            job.shared.keep_failure([&] { mine(team); });
        };
        announce(part, &job);
        part(&job, *this, 0);
        barrier_.wait(size_);
        job.shared.rethrow();
    }

private:
    typedef void (*Part)(void* data, PersistentTeam& team, int64_t index);

    template <class Work>
    void lead(int64_t size, const Work& work) {
        struct Leading {
            ~Leading() { current = nullptr; }
        } const leading;
        size_ = size;
        current = this;
        work();
    }
    void announce(Part part, void* data) {
        part_ = part;
        data_ = data;
        announced_.raise();
    }
    void follow(int64_t index) {
        for (uint32_t n_done = 0;; n_done++) {
            announced_.wait(n_done);
            if (!part_) return;
            part_(data_, *this, index);
            barrier_.wait(size_);
        }
    }

    static inline std::atomic<int32_t> n_on_fast_cores_{0};
    Barrier barrier_;
    Signal announced_;
    Part part_ = nullptr;
    void* data_ = nullptr;
    int64_t size_ = 1;
};

// As many threads as a region that is opened here may have.
static inline int64_t most_threads() { return PersistentTeam::current ? PersistentTeam::current->size() : omp_get_max_threads(); }

// Calls run(team) in every thread. Each thread has its own copy of `run`: what it captures by value ([=]) can stay in
// registers, because the compiler knows that no store through a kernel's pointers changes it.
template <class Run>
static void parallel(Run run) {
    if (PersistentTeam::current) return PersistentTeam::current->run(run);
    ThreadTeam::Shared shared = {};
    auto region = [&] {
        const Run mine = run;
        ThreadTeam team(shared);
        shared.keep_failure([&] { mine(team); });
    };
    open_region(region);
    shared.rethrow();
}

// The same for n rows of a search, which the fast cores share alone if they are few.
template <class Run>
static void parallel_rows(int64_t n, bool one_sentence, Run run) {
    if (PersistentTeam::current || !FastCores::suffice_for(n, one_sentence)) return parallel(run);
    PersistentTeam::with(true, [&] { parallel(run); });
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
struct ScratchBuffer {  // memory that grows
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
using Scratch = ScratchBuffer<float>;  // one a thread

}  // namespace heed
