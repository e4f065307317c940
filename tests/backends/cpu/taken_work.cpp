// Which thread does what in the loops of threads.h: test_threads.py compiles this with each compiler. Exits with 1 and
// prints a line for each loop in which work waited for a thread that was slow.

#include "threads.h"

#include <cstdio>

using heed::ThreadTeam;

constexpr int64_t N = 100, OTHERS = 3 * N / 4;  // at least so many must be done without the slow thread

// Whoever begins with index 0 is slow: it goes on when the others have done OTHERS of the rest, or after a long time.
struct Work {
    std::atomic<int> times[N] = {};
    std::atomic<int64_t> n_done{0};
    bool waited = false;

    void operator()(int64_t i) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (i == 0 && n_done < OTHERS && !waited) waited = std::chrono::steady_clock::now() > end;
        times[i]++;
        n_done++;
    }
    bool good() const {
        bool once = true;
        for (const auto& n : times) once &= n == 1;
        return once && !waited;
    }
};

template <class Loop>
static int failures_of(const char* name, Loop loop) {
    int n = 0;
    const auto check = [&](const char* threads, auto run) {
        Work work;
        run(work);
        if (work.good()) return;
        printf("%s, %s\n", name, threads);
        n++;
    };
    check("region", [&](Work& work) { heed::parallel([&](ThreadTeam& team) { loop(team, work); }); });
    check("crew", [&](Work& work) {
        heed::PersistentTeam::with(false, [&] { heed::parallel([&](ThreadTeam& team) { loop(team, work); }); });
    });
    return n;
}

int main() {
    omp_set_num_threads(2);
    const auto of = [](Work& work) { return [&work](int64_t i) { work(i); }; };
    int n = failures_of("split", [&](ThreadTeam& team, Work& work) { team.split(N, of(work)); });
    n += failures_of("split_last", [&](ThreadTeam& team, Work& work) { team.split_last(N, of(work)); });
    n += failures_of("share", [&](ThreadTeam& team, Work& work) { team.share(N, 3, of(work)); });
    n += failures_of("two loops", [&](ThreadTeam& team, Work& work) {
        team.split(7, [](int64_t) {});
        team.split_last(N, of(work));
    });
    return n > 0;
}
