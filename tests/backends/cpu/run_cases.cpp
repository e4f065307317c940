// Calls exported kernels with the memory that a file describes and compares what they leave there: test_portable.py
// writes the file. Usage: run_cases FILE. Exits with 1 if a result differs, and prints which.
//
// The file holds little-endian numbers: the number of cases; of each case its name, its regions of memory, its
// arguments and the result. A region is its element type ('f' float, 'h' bf16, 'd' double, 'x' compared exactly), its
// size in bytes, its bytes before and after the call, and the places in it that hold the address of another region.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "kernels.h"

using heed::bf16;

struct Region {
    char type;
    std::vector<char> before, after;
    struct Address {
        int64_t offset, region;
    };
    std::vector<Address> addresses;
    std::unique_ptr<char[]> memory;  // of its own and exactly as large, so that tools notice accesses beyond it
};

struct Argument {
    char kind;  // 'p' address of a region, 'n' integer, 'f' float, '0' null
    int64_t integer;
    double number;
};

class File {
public:
    explicit File(const char* path) : stream_(path, std::ios::binary) {}
    template <class T>
    T read() {
        T x;
        stream_.read(reinterpret_cast<char*>(&x), sizeof(T));
        if (!stream_) {
            fprintf(stderr, "the file ends too early\n");
            exit(2);
        }
        return x;
    }
    std::vector<char> bytes(int64_t n) {
        std::vector<char> x(static_cast<size_t>(n));
        stream_.read(x.data(), n);
        return x;
    }

private:
    std::ifstream stream_;
};

struct Case {
    char products;  // of weights in it: i, of 8-bit integers; b, of bf16; f, of float or none
    std::string name;
    std::vector<Region> regions;
    std::vector<Argument> arguments;
    int64_t result;
    size_t next = 0;  // argument

    explicit Case(File& file) {
        const std::vector<char> letters = file.bytes(file.read<int64_t>());
        name.assign(letters.begin(), letters.end());
        products = file.read<char>();
        for (int64_t left = file.read<int64_t>(); left > 0; left--) {
            Region region;
            region.type = file.read<char>();
            const int64_t size = file.read<int64_t>();
            region.before = file.bytes(size);
            region.after = file.bytes(size);
            for (int64_t n = file.read<int64_t>(); n > 0; n--) {
                const int64_t offset = file.read<int64_t>();
                region.addresses.push_back({offset, file.read<int64_t>()});
            }
            regions.push_back(std::move(region));
        }
        for (int64_t left = file.read<int64_t>(); left > 0; left--) {
            const char kind = file.read<char>();
            const int64_t integer = file.read<int64_t>();
            arguments.push_back({kind, integer, file.read<double>()});
        }
        result = file.read<int64_t>();
    }

    char* at(int64_t region) { return regions[static_cast<size_t>(region)].memory.get(); }

    void fill() {
        for (Region& region : regions) {
            region.memory.reset(new char[region.before.size()]);
            std::copy(region.before.begin(), region.before.end(), region.memory.get());
        }
        for (Region& region : regions)
            for (const Region::Address& address : region.addresses) {
                const char* const target = at(address.region);
                memcpy(region.memory.get() + address.offset, &target, sizeof(target));
            }
    }

    template <class A>
    A take() {
        const Argument& argument = arguments.at(next++);
        if constexpr (std::is_pointer_v<A>)
            return argument.kind == '0' ? nullptr : reinterpret_cast<A>(at(argument.integer));
        else if constexpr (std::is_same_v<A, float>)
            return float(argument.number);
        else
            return A(argument.integer);
    }
};

template <class R, class... A>
static bool call(R (*kernel)(A...), Case& of) {
    const std::tuple<A...> arguments{of.take<A>()...};
    if constexpr (std::is_void_v<R>) {
        std::apply(kernel, arguments);
        return true;
    } else {
        return int64_t(std::apply(kernel, arguments)) == of.result;
    }
}

#define KERNEL(NAME) {#NAME, [](Case& of) { return call(NAME, of); }},
static const std::map<std::string, bool (*)(Case&)> kernels = {
#include "listed.h"  // KERNEL(NAME) of each: test_portable.py writes it
};
#undef KERNEL

// Whether this build has what the case needs.
static bool available(const Case& of) {
    if (of.name == "tile_product") return has_tiles() != 0;
    return of.products == 'i' ? has_int8() != 0 : of.products == 'b' ? has_bf16() != 0 : true;
}

template <class T>
static double number(const T* x) {
    return double(heed::to_float(*x));
}
template <>
double number(const double* x) {
    return *x;
}

// The largest difference, as a part of the largest number expected.
template <class T>
static double difference(const Region& region) {
    const T* const got = reinterpret_cast<const T*>(region.memory.get());
    const T* const expected = reinterpret_cast<const T*>(region.after.data());
    double scale = 1e-30, largest = 0;
    for (size_t i = 0; i < region.after.size() / sizeof(T); i++)
        if (std::isfinite(number(expected + i))) scale = std::max(scale, std::fabs(number(expected + i)));
    for (size_t i = 0; i < region.after.size() / sizeof(T); i++) {
        const double a = number(got + i), b = number(expected + i);
        if (a == b || (std::isnan(a) && std::isnan(b))) continue;
        largest = std::isfinite(a - b) ? std::max(largest, std::fabs(a - b) / scale) : INFINITY;
    }
    return largest;
}

// What is computed from bf16 may differ by its rounding.
static bool as_expected(const Region& region, bool from_bf16) {
    switch (region.type) {
        case 'f':
            return difference<float>(region) < (from_bf16 ? 2e-2 : 1e-4);
        case 'h':
            return difference<bf16>(region) < 2e-2;
        case 'd':
            return difference<double>(region) < (from_bf16 ? 2e-2 : 1e-6);
        default:
            break;
    }
    if (!region.addresses.empty()) return true;  // addresses differ, and no kernel writes to what holds them
    return std::equal(region.after.begin(), region.after.end(), region.memory.get());
}

int main(int n_arguments, char** arguments) {
    if (n_arguments != 2) return 2;
    File file(arguments[1]);
    int n_wrong = 0, n_skipped = 0;
    const int64_t n_cases = file.read<int64_t>();
    for (int64_t i = 0; i < n_cases; i++) {
        Case of(file);
        if (!available(of)) {
            n_skipped++;
            continue;
        }
        of.fill();
        bool right = kernels.at(of.name)(of) && of.next == of.arguments.size();
        const bool from_bf16 = of.name.size() > 5 && of.name.compare(of.name.size() - 5, 5, "_bf16") == 0;
        for (const Region& region : of.regions) right = as_expected(region, from_bf16) && right;
        if (!right) printf("case %d: %s differs\n", int(i), of.name.c_str());
        n_wrong += !right;
    }
    printf("%d cases, %d skipped, %d wrong\n", int(n_cases), n_skipped, n_wrong);
    return n_wrong > 0;
}
