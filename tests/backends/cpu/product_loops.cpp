// The loops of products, each in a function of its own, for test_product_loops.py to look at.

#include "fp32_products.h"
#include "int8_products.h"

extern "C" {
// Products with packed weights, as in a search.
void fp32_panel(const float* x, const heed::Fp32Panel& w, float* y, int64_t n, int64_t y_ld) {
    heed::fp32_panel_product(x, w, y, n, y_ld);
}
void int8_panel(const heed::Int8Block<float>& block, int64_t n) { block.multiply(0, n); }

// A product of attention in training.
void strided_product(const float* a, int64_t a_row, int64_t a_col, const float* b, int64_t b_ld, float* c, int64_t c_ld,
                     int64_t m, int64_t n, int64_t k) {
    heed::product(a, a_row, a_col, b, b_ld, c, c_ld, m, n, k);
}
}
