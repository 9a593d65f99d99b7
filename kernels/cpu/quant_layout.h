// GGUF blocks of 32 values re-laid for panels: the same bits and size, ordered for 16 columns at once.
//
// One block of a panel is 16 columns x 32 of K:
//   kQ4_0  256 B nibbles, 16 f16 scales                   value = d * (q - 8)
//   kQ4_1  256 B nibbles, 16 f16 scales, 16 f16 minima    value = d * q + m
//   kQ8_0  512 B,         16 f16 scales                   value = d * q
// Nibbles: byte (i, column, j) of [4][16][4] holds k = 4 * (2 * i) + j low and k = 4 * (2 * i + 1) + j
// high. Bytes of kQ8_0: [8 quads][16 columns][4], each q + 128 so that every kind is unsigned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace rt {

constexpr size_t quant_block_bytes(WeightKind kind) {
  return kind == WeightKind::kQ4_0 ? 256 + 32 : kind == WeightKind::kQ4_1 ? 256 + 64 : 512 + 32;
}

// Source blocks of one row (ggml layout) into column `column` of a panel.
void pack_quant_row(WeightKind kind, const uint8_t* blocks, int64_t cols, int column,
                    uint8_t* panel);

void unpack_quant_row(WeightKind kind, const uint8_t* panel, int64_t cols, int column, float* out);

}  // namespace rt
