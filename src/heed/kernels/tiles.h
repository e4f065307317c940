// AMX: tiles of 16 rows of 64 bytes, and products of them.

#pragma once

#include "common.h"

// Whether the processor multiplies tiles of bf16, and the system lets this process do so.
extern "C" int has_tiles();

#if defined(__AMX_BF16__) && defined(HEED_HAS_BF16_PAIRS)
#define HEED_HAS_TILES 1
#endif

class Tiles {  // eight, a thread's, while this lives
    const bool used;

public:
    explicit Tiles(bool used) : used(used) {
#ifdef HEED_HAS_TILES
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int i = 0; i < 8; i++) shape.row_bytes[i] = 64, shape.rows[i] = 16;
        if (used) asm volatile("ldtilecfg %0" : : "m"(shape));  // GCC's function tells the compiler of its first bytes alone
#endif
    }
    ~Tiles() {
#ifdef HEED_HAS_TILES
        if (used) _tile_release();
#endif
    }
    Tiles(const Tiles&) = delete;
};
