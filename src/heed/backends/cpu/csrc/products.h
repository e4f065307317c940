// Products of some rows with packed weights, in float and in 8-bit integers. What is computed for a row never depends on
// the other rows, to the last bit, nor on the number of threads.

#pragma once

#include "common.h"

#include <utility>

constexpr int64_t PANEL = 2 * W;

// A weight of d_in inputs and d_out outputs in panels of 32 outputs, filled up with zeros, and its bias, filled up too:
// (panel, d_in, 32) of float, or (panel, d_in / 4, 32, 4) of 8-bit numbers, which count in steps of their output.
struct Weight {
    const void* panels;
    const int32_t* offsets;  // of 8-bit weights: -128 times the sum of an output's numbers
    const float *steps, *bias;
    int64_t d_in, d_out;
    int64_t n_panels() const { return (d_out + PANEL - 1) / PANEL; }
};

// Some rows, and who sees to them: one thread alone, or all threads of a parallel region together, each of which then
// calls what takes a share.
struct Share {
    int64_t n;
    bool alone;
    template <class Do>
    void rows(Do run) const {
        if (alone) {
            for (int64_t i = 0; i < n; i++) run(i);
        } else {
#pragma omp for
            for (int64_t i = 0; i < n; i++) run(i);
        }
    }
    // A thread takes some panels in a row, so that it can fetch the next one from memory meanwhile.
    template <class Do>
    void panels(const Weight& weight, Do run) const {
        const int64_t n_panels = weight.n_panels();
        if (alone) {
            for (int64_t p = 0; p < n_panels; p++) run(p);
        } else {
            const int32_t turn = int32_t(std::max(int64_t(1), n_panels / (4 * omp_get_num_threads())));
#pragma omp for schedule(dynamic, turn)
            for (int64_t p = 0; p < n_panels; p++) run(p);
        }
    }
};

// ---------------------------------------------------------------------------------------------------------------------
// y = x · Wᵀ + bias in float, ReLU behind it if asked for.

template <int ROWS>
static inline int64_t panel_rows(int64_t i, const float* x, const float* panel, const float* bias, float* y, int64_t n,
                                 int64_t d_in, int64_t d_out, int64_t width, bool relu) {
    float tile[ROWS * PANEL];
    for (; i + ROWS <= n; i += ROWS) {
        block<ROWS, 2>(x + i * d_in, d_in, 1, panel, PANEL, tile, PANEL, d_in);
        for (int64_t r = 0; r < ROWS; r++)
            for (int64_t j = 0; j < width; j++) {
                const float sum = tile[r * PANEL + j] + bias[j];
                y[(i + r) * d_out + j] = relu && sum < 0 ? 0 : sum;
            }
    }
    return i;
}

static void panel_product(const float* x, const Weight& weight, float* y, Share share, bool relu) {
    const int64_t d_in = weight.d_in, d_out = weight.d_out, n = share.n;
    share.panels(weight, [&](int64_t p) {
        const float *panel = static_cast<const float*>(weight.panels) + p * d_in * PANEL, *b = weight.bias + p * PANEL;
        const int64_t width = std::min(PANEL, d_out - p * PANEL);
        float* const to = y + p * PANEL;
        int64_t i = panel_rows<12>(0, x, panel, b, to, n, d_in, d_out, width, relu);
        i = panel_rows<4>(i, x, panel, b, to, n, d_in, d_out, width, relu);
        panel_rows<1>(i, x, panel, b, to, n, d_in, d_out, width, relu);
    });
}

// ---------------------------------------------------------------------------------------------------------------------
// The same in 8-bit integers: each row of x in steps of its largest number / 127, W in steps of its own by outputs. The
// instruction multiplies unsigned with signed numbers, so x carries 128 too much, which `offsets` takes off.

struct Int8Panel {
    const int8_t *weights, *next;  // next: of the panel that will probably be wanted after this one, or none
    const int32_t* offsets;
    const float *steps, *bias;
    int64_t d_in, width;
    bool relu;
};

static inline int64_t in_fours(int64_t d_in) { return (d_in + 3) / 4 * 4; }

static inline Int8Panel int8_panel_of(const Weight& weight, int64_t p, int64_t next, bool relu) {
    const int64_t d_in = in_fours(weight.d_in), first = p * PANEL;
    const int8_t* const weights = static_cast<const int8_t*>(weight.panels);
    return {weights + first * d_in, next < weight.n_panels() ? weights + next * PANEL * d_in : nullptr,
            weight.offsets + first, weight.steps + first, weight.bias + first, d_in,
            std::min(PANEL, weight.d_out - first), relu};
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#define HEED_INT8
constexpr bool HAS_INT8 = true;

static inline __mmask16 first_of(int64_t n) { return n >= W ? __mmask16(0xffff) : __mmask16((1 << n) - 1); }

// Up to 16 of the n numbers at x; zeros behind them.
static inline __m512 numbers_of(const float* x, int64_t n) { return _mm512_maskz_loadu_ps(first_of(n), x); }
static inline __m512 numbers_of(const bf16* x, int64_t n) {
    const __m256i bits = _mm256_maskz_loadu_epi16(first_of(n), x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Written out, since GCC copies the sums of the intrinsic from register to register until none is left.
static inline void add_products(__m512i& sum, __m512i x, __m512i w) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
}

static inline void store(float* to, __m512 x, __mmask16 which) { _mm512_mask_storeu_ps(to, which, x); }
static inline void store(bf16* to, __m512 x, __mmask16 which) {  // as `put` rounds
    const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_mask_storeu_epi16(to, which, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

template <class U>
[[gnu::always_inline]] static inline void finish(__m512i sum, float step, const Int8Panel& w, int64_t from, U* to) {
    const __m512 steps = _mm512_mul_ps(_mm512_set1_ps(step), _mm512_loadu_ps(w.steps + from));
    __m512 y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), steps, _mm512_loadu_ps(w.bias + from));
    if (w.relu) y = _mm512_max_ps(_mm512_setzero_ps(), y);  // in this order NaN stays NaN
    store(to + from, y, first_of(std::max(int64_t(0), w.width - from)));
}

// As many rows as there are numbers R, which are written out so that every sum has a register of its own. Each time they
// fetch their share of the next panel, which would otherwise be waited for: weights are read once a step, from memory.
template <class U, size_t... R>
static inline int64_t int8_rows(std::index_sequence<R...>, int64_t i, const uint8_t* q, const float* steps,
                                const Int8Panel& w, U* y, int64_t n, int64_t d_out) {
    constexpr int64_t rows = sizeof...(R);
    for (; i + rows <= n; i += rows) {
        __m512i a[rows], b[rows];
        ((a[R] = _mm512_loadu_si512(w.offsets), b[R] = _mm512_loadu_si512(w.offsets + W)), ...);
        const int64_t share = (w.d_in * PANEL * rows + n - 1) / n;
        if (w.next)
            for (int64_t at = 0; at < share; at += 64)
                _mm_prefetch(reinterpret_cast<const char*>(w.next + i * share / rows + at), _MM_HINT_T1);
        const uint8_t* x = q + i * w.d_in;
        const int8_t* weights = w.weights;
        for (int64_t l = 0; l < w.d_in; l += 4, x += 4, weights += 4 * PANEL) {
            const __m512i w0 = _mm512_loadu_si512(weights), w1 = _mm512_loadu_si512(weights + 64);
            const auto add = [&](__m512i& sum0, __m512i& sum1, const uint8_t* at) {
                int32_t four;
                memcpy(&four, at, 4);
                const __m512i numbers = _mm512_set1_epi32(four);
                add_products(sum0, numbers, w0);
                add_products(sum1, numbers, w1);
            };
            (add(a[R], b[R], x + R * w.d_in), ...);
        }
        (finish(a[R], steps[i + R], w, 0, y + (i + R) * d_out), ...);
        (finish(b[R], steps[i + R], w, W, y + (i + R) * d_out), ...);
    }
    return i;
}

template <class T>
static inline void quantize(const T* x, uint8_t* q, float* step, int64_t d_in, int64_t ld) {
    // The largest number by its bits, among which those of NaN and infinity come last: then the step is one of them, and
    // so is all that is made of the row.
    __m512i bits = _mm512_setzero_si512();
    for (int64_t j = 0; j < d_in; j += W)
        bits = _mm512_max_epi32(bits, _mm512_castps_si512(_mm512_abs_ps(numbers_of(x + j, d_in - j))));
    const int32_t most_bits = _mm512_reduce_max_epi32(bits);
    float most;
    memcpy(&most, &most_bits, 4);
    const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
    for (int64_t j = 0; j < d_in; j += W) {
        const __m512 scaled = _mm512_mul_ps(numbers_of(x + j, d_in - j), inverse);
        const __m512i whole = _mm512_add_epi32(_mm512_cvtps_epi32(scaled), _mm512_set1_epi32(128));
        _mm512_mask_cvtepi32_storeu_epi8(q + j, first_of(ld - j), whole);
    }
    *step = most / 127.0f;
}

// All rows of the panel's outputs.
template <class U>
static inline void int8_panel(const uint8_t* q, const float* steps, const Int8Panel& w, U* y, int64_t n,
                              int64_t stride) {
    int64_t i = int8_rows(std::make_index_sequence<12>(), 0, q, steps, w, y, n, stride);
    i = int8_rows(std::make_index_sequence<4>(), i, q, steps, w, y, n, stride);
    int8_rows(std::make_index_sequence<1>(), i, q, steps, w, y, n, stride);
}

// Rows of x in 8 bits, in memory of the caller's.
struct Quantized {
    uint8_t* numbers;
    float* steps;
    template <class T>
    void take(int64_t i, const T* row, int64_t d_in) const {
        quantize(row, numbers + i * in_fours(d_in), steps + i, d_in, in_fours(d_in));
    }
};

template <class U>
static void int8_product(const Quantized& x, const Weight& weight, U* y, Share share, bool relu) {
    share.panels(weight, [&](int64_t p) {
        int8_panel(x.numbers, x.steps, int8_panel_of(weight, p, p + 1, relu), y + p * PANEL, share.n, weight.d_out);
    });
}

template <class T, class U>
static void quantized_product(const T* x, const Weight& weight, U* y, int64_t n, bool relu) {
    std::unique_ptr<uint8_t[]> numbers(new uint8_t[size_t(n * in_fours(weight.d_in))]);
    std::unique_ptr<float[]> steps(new float[size_t(n)]);
    const Quantized rows{numbers.get(), steps.get()};
    const Share all{n, false};
#pragma omp parallel
    {
        all.rows([&](int64_t i) { rows.take(i, x + i * weight.d_in, weight.d_in); });
        int8_product(rows, weight, y, all, relu);
    }
}
#else
constexpr bool HAS_INT8 = false;

struct Quantized {
    uint8_t* numbers;
    float* steps;
    template <class T>
    void take(int64_t, const T*, int64_t) const {}
};
template <class U>
static void int8_product(const Quantized&, const Weight&, U*, Share, bool) {}
template <class T, class U>
static void quantized_product(const T*, const Weight&, U*, int64_t, bool) {}
#endif
