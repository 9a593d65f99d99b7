// GGUF blocks re-laid for panels: the same bits and size, ordered for 16 columns at once.
//
// A block of a panel is 16 columns x 32 or 256 of K: its values in sub-blocks of 32, then scales.
// Values of a sub-block, q unsigned:
//   low nibbles, 256 B: byte (i, column, j) of [4][16][4] holds k = 4 * (2 * i) + j low and
//     k = 4 * (2 * i + 1) + j high
//   fifth bits, 64 B: bit p of byte (column, j) of [16][4] belongs to k = 4 * p + j
//   fifth and sixth bits, 128 B: bits 2 * p of byte (v, column, j) of [2][16][4] to k = 16 * v + 4 * p + j
//   or whole bytes, 512 B: [8 quads][16 columns][4]
// Scales: 16 f16 d, 16 f16 m where there are minima, and the inner scales of a block of 256:
//   kQ4_K, kQ5_K  [3][16] words of 32 bits, see inner_scale_bits
//   kQ6_K         [16 groups of 16][16 columns] int8
#pragma once

#include <cstddef>
#include <cstdint>

#include "linear.h"

namespace rt {

struct QuantTraits {
  int bits;        // of a value
  int sub_blocks;  // of 32 values in a block
  int zero;        // value = d * scale * (q - zero) + m * min
  bool has_min;
  int group;  // values that share an inner scale
};

constexpr QuantTraits quant_traits(WeightKind kind) {
  switch (kind) {
    case WeightKind::kQ4_0: return {4, 1, 8, false, 32};
    case WeightKind::kQ4_1: return {4, 1, 0, true, 32};
    case WeightKind::kQ5_0: return {5, 1, 16, false, 32};
    case WeightKind::kQ5_1: return {5, 1, 0, true, 32};
    case WeightKind::kQ4_K: return {4, 8, 0, true, 32};
    case WeightKind::kQ5_K: return {5, 8, 0, true, 32};
    case WeightKind::kQ6_K: return {6, 8, 32, false, 16};
    default: return {8, 1, 128, false, 32};  // kQ8_0
  }
}

constexpr size_t quant_sub_bytes(WeightKind kind) {
  return static_cast<size_t>(quant_traits(kind).bits) * 64;
}
// Where the scales of a block start.
constexpr size_t quant_scale_offset(WeightKind kind) {
  return quant_sub_bytes(kind) * static_cast<size_t>(quant_traits(kind).sub_blocks);
}
constexpr size_t quant_block_bytes(WeightKind kind) {
  const QuantTraits t = quant_traits(kind);
  const size_t inner = t.sub_blocks == 1 ? 0 : t.group == 16 ? 256 : 192;
  return quant_scale_offset(kind) + (t.has_min ? 64 : 32) + inner;
}
constexpr int quant_block_values(WeightKind kind) { return quant_traits(kind).sub_blocks * 32; }

// The eight scales and eight minima of 6 bits in a column's three words: five in each word, the
// sixteenth in the words' top pairs.
struct InnerBits {
  int word, shift;
};
constexpr InnerBits inner_scale_bits(int s) {
  return s < 5 ? InnerBits{0, 6 * s} : s < 7 ? InnerBits{2, 6 * (s - 5)} : InnerBits{2, 24};
}
// For s < 7; minimum 7 is made of bits 30 and 31 of words 0, 1 and 2.
constexpr InnerBits inner_min_bits(int s) {
  return s < 5 ? InnerBits{1, 6 * s} : InnerBits{2, 12 + 6 * (s - 5)};
}

// The kind that keeps this ggml block type as it is; kNone where there is none.
WeightKind block_kind(int32_t dtype);

// Source blocks of one row (ggml layout) into column `column` of a zeroed panel.
void pack_quant_row(int32_t dtype, const uint8_t* blocks, int64_t cols, int column, uint8_t* panel);

void unpack_quant_row(WeightKind kind, const uint8_t* panel, int64_t cols, int column, float* out);

// Source blocks of one row to values.
void dequantise_row(int32_t dtype, const uint8_t* blocks, int64_t cols, float* out);

}  // namespace rt
