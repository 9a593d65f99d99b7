#include "quant_layout.h"

#include <cstring>

#include "abi.h"
#include "gguf_blocks.h"

namespace rt {
namespace {

// Value q of k in [0, 32) of a ggml nibble block: the low halves are k < 16, the high ones the rest.
int nibble(const uint8_t* qs, int k) { return k < 16 ? qs[k] & 15 : qs[k - 16] >> 4; }

uint8_t* nibble_byte(uint8_t* block, int k, int column) {
  return block + (k / 8 * 16 + column) * 4 + k % 4;
}

}  // namespace

void pack_quant_row(WeightKind kind, const uint8_t* source, int64_t cols, int column,
                    uint8_t* panel) {
  const bool bytes = kind == WeightKind::kQ8_0;
  const size_t header = kind == WeightKind::kQ4_1 ? 4 : 2;
  const size_t source_bytes = header + (bytes ? 32 : 16);
  for (int64_t b = 0; b < cols / 32; ++b, source += source_bytes) {
    uint8_t* block = panel + static_cast<size_t>(b) * quant_block_bytes(kind);
    const uint8_t* qs = source + header;
    uint8_t* scales = block + (bytes ? 512 : 256);
    memcpy(scales + column * 2, source, 2);
    if (kind == WeightKind::kQ4_1) memcpy(scales + 32 + column * 2, source + 2, 2);
    for (int k = 0; k < 32; ++k) {
      if (bytes)
        block[(k / 4 * 16 + column) * 4 + k % 4] = static_cast<uint8_t>(qs[k] ^ 0x80);
      else
        *nibble_byte(block, k, column) |= static_cast<uint8_t>(nibble(qs, k) << (k % 8 < 4 ? 0 : 4));
    }
  }
}

void unpack_quant_row(WeightKind kind, const uint8_t* panel, int64_t cols, int column, float* out) {
  const bool bytes = kind == WeightKind::kQ8_0;
  for (int64_t b = 0; b < cols / 32; ++b) {
    const uint8_t* block = panel + static_cast<size_t>(b) * quant_block_bytes(kind);
    const uint8_t* scales = block + (bytes ? 512 : 256);
    uint16_t h[2] = {0, 0};
    memcpy(&h[0], scales + column * 2, 2);
    if (kind == WeightKind::kQ4_1) memcpy(&h[1], scales + 32 + column * 2, 2);
    const float d = f16_value(h[0]), m = kind == WeightKind::kQ4_1 ? f16_value(h[1]) : 0.0f;
    for (int k = 0; k < 32; ++k, ++out) {
      const uint8_t byte = bytes ? block[(k / 4 * 16 + column) * 4 + k % 4]
                                 : block[(k / 8 * 16 + column) * 4 + k % 4];
      const int q = bytes ? byte - 128 : k % 8 < 4 ? byte & 15 : byte >> 4;
      *out = d * static_cast<float>(kind == WeightKind::kQ4_0 ? q - 8 : q) + m;
    }
  }
}

}  // namespace rt
