#include "quant_layout.h"

#include <cstring>

#include "abi.h"
#include "gguf_blocks.h"

namespace rt {
namespace {

void put_value(uint8_t* sub, int bits, int column, int k, uint8_t q) {
  const int in_quad = column * 4 + k % 4;
  if (bits == 8) {
    sub[k / 4 * 64 + in_quad] = q;
    return;
  }
  sub[k / 8 * 64 + in_quad] |= static_cast<uint8_t>((q & 15) << (k % 8 < 4 ? 0 : 4));
  if (bits == 5) sub[256 + in_quad] |= static_cast<uint8_t>(q >> 4 << (k / 4));
  if (bits == 6)
    sub[256 + k / 16 * 64 + in_quad] |= static_cast<uint8_t>(q >> 4 << (2 * (k / 4 % 4)));
}

uint8_t value_at(const uint8_t* sub, int bits, int column, int k) {
  const int in_quad = column * 4 + k % 4;
  if (bits == 8) return sub[k / 4 * 64 + in_quad];
  const int low = sub[k / 8 * 64 + in_quad] >> (k % 8 < 4 ? 0 : 4) & 15;
  if (bits == 5) return static_cast<uint8_t>(low | (sub[256 + in_quad] >> (k / 4) & 1) << 4);
  if (bits == 6)
    return static_cast<uint8_t>(
        low | (sub[256 + k / 16 * 64 + in_quad] >> (2 * (k / 4 % 4)) & 3) << 4);
  return static_cast<uint8_t>(low);
}

uint32_t word_at(const uint8_t* words, int word, int column) {
  uint32_t w;
  memcpy(&w, words + (word * kPanel + column) * 4, 4);
  return w;
}

void put_inner_scales(uint8_t* words, int column, const BlockParts& parts) {
  const uint32_t last = parts.min[7];
  uint32_t w[3] = {(last & 3) << 30, (last >> 2 & 3) << 30, last >> 4 << 30};
  for (int s = 0; s < 8; ++s) {
    const InnerBits scale = inner_scale_bits(s), min = inner_min_bits(s);
    w[scale.word] |= static_cast<uint32_t>(parts.scale[s]) << scale.shift;
    if (s < 7) w[min.word] |= static_cast<uint32_t>(parts.min[s]) << min.shift;
  }
  for (int i = 0; i < 3; ++i) memcpy(words + (i * kPanel + column) * 4, w + i, 4);
}

void read_inner_scales(const uint8_t* words, int column, BlockParts* parts) {
  const uint32_t w[3] = {word_at(words, 0, column), word_at(words, 1, column),
                         word_at(words, 2, column)};
  for (int s = 0; s < 8; ++s) {
    const InnerBits scale = inner_scale_bits(s), min = inner_min_bits(s);
    parts->scale[s] = static_cast<int8_t>(w[scale.word] >> scale.shift & 63);
    parts->min[s] = static_cast<uint8_t>(s < 7 ? w[min.word] >> min.shift & 63
                                               : w[0] >> 30 | w[1] >> 30 << 2 | w[2] >> 30 << 4);
  }
}

void dequantise(const QuantTraits& t, const BlockParts& parts, float* out) {
  const float d = f16_value(parts.d), m = f16_value(parts.m);
  for (int k = 0; k < t.sub_blocks * 32; ++k) {
    const int g = k / t.group;
    out[k] = d * static_cast<float>(parts.scale[g] * (parts.q[k] - t.zero));
    if (t.has_min) out[k] += m * static_cast<float>(parts.min[g]);
  }
}

}  // namespace

WeightKind block_kind(int32_t dtype) {
  switch (dtype) {
    case RT_Q4_0: return WeightKind::kQ4_0;
    case RT_Q4_1: return WeightKind::kQ4_1;
    case RT_Q5_0: return WeightKind::kQ5_0;
    case RT_Q5_1: return WeightKind::kQ5_1;
    case RT_Q8_0: return WeightKind::kQ8_0;
    case RT_Q4_K: return WeightKind::kQ4_K;
    case RT_Q5_K: return WeightKind::kQ5_K;
    case RT_Q6_K: return WeightKind::kQ6_K;
    default: return WeightKind::kNone;
  }
}

void pack_quant_row(int32_t dtype, const uint8_t* source, int64_t cols, int column,
                    uint8_t* panel) {
  const WeightKind kind = block_kind(dtype);
  const QuantTraits t = quant_traits(kind);
  const int values = quant_block_values(kind);
  BlockParts parts;
  for (int64_t at = 0; at < cols; at += values, source += block_bytes(dtype)) {
    read_block(source, dtype, &parts);
    for (int k = 0; k < values; ++k)
      put_value(panel + static_cast<size_t>(k / 32) * quant_sub_bytes(kind), t.bits, column, k % 32,
                parts.q[k]);
    uint8_t* scales = panel + quant_scale_offset(kind);
    memcpy(scales + column * 2, &parts.d, 2);
    if (t.has_min) memcpy(scales + 32 + column * 2, &parts.m, 2);
    if (kind == WeightKind::kQ6_K)
      for (int g = 0; g < 16; ++g) memcpy(scales + 32 + g * 16 + column, parts.scale + g, 1);
    else if (t.sub_blocks == 8)
      put_inner_scales(scales + 64, column, parts);
    panel += quant_block_bytes(kind);
  }
}

void unpack_quant_row(WeightKind kind, const uint8_t* panel, int64_t cols, int column, float* out) {
  const QuantTraits t = quant_traits(kind);
  const int values = quant_block_values(kind);
  BlockParts parts;
  for (int64_t at = 0; at < cols; at += values, panel += quant_block_bytes(kind), out += values) {
    const uint8_t* scales = panel + quant_scale_offset(kind);
    parts.scale[0] = 1;
    parts.min[0] = 1;
    parts.m = 0;
    memcpy(&parts.d, scales + column * 2, 2);
    if (t.has_min) memcpy(&parts.m, scales + 32 + column * 2, 2);
    if (kind == WeightKind::kQ6_K)
      for (int g = 0; g < 16; ++g) memcpy(parts.scale + g, scales + 32 + g * 16 + column, 1);
    else if (t.sub_blocks == 8)
      read_inner_scales(scales + 64, column, &parts);
    for (int k = 0; k < values; ++k)
      parts.q[k] = value_at(panel + static_cast<size_t>(k / 32) * quant_sub_bytes(kind), t.bits,
                            column, k % 32);
    dequantise(t, parts, out);
  }
}

void dequantise_row(int32_t dtype, const uint8_t* source, int64_t cols, float* out) {
  const QuantTraits t = quant_traits(block_kind(dtype));
  BlockParts parts;
  for (int64_t at = 0; at < cols; at += block_values(dtype)) {
    read_block(source, dtype, &parts);
    dequantise(t, parts, out);
    source += block_bytes(dtype);
    out += block_values(dtype);
  }
}

}  // namespace rt
