#include "gguf_blocks.h"

#include <cmath>
#include <cstring>

#include "abi.h"

namespace rt {
namespace {

uint16_t u16_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return h;
}

// 32 values of 4 bits: the low halves of 16 bytes first. `high` holds the fifth bits, if any.
void read_nibbles(const uint8_t* qs, uint32_t high, uint8_t* q) {
  for (int k = 0; k < 32; ++k) {
    const int low = k < 16 ? qs[k] & 15 : qs[k - 16] >> 4;
    q[k] = static_cast<uint8_t>(low | (high >> k & 1) << 4);
  }
}

uint32_t fifth_bits(const uint8_t* p) {
  uint32_t bits;
  memcpy(&bits, p, 4);
  return bits;
}

// Eight 6-bit scales and minima in 12 bytes.
void read_k_scales(const uint8_t* packed, BlockParts* parts) {
  for (int s = 0; s < 8; ++s) {
    int scale, min;
    if (s < 4) {
      scale = packed[s] & 63;
      min = packed[s + 4] & 63;
    } else {
      scale = (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4;
      min = (packed[s + 4] >> 4) | (packed[s] >> 6) << 4;
    }
    parts->scale[s] = static_cast<int8_t>(scale);
    parts->min[s] = static_cast<uint8_t>(min);
  }
}

// 256 values: f16 d and dmin, scales, for five bits 32 bytes of high bits, 128 bytes of nibbles.
void read_q4_k(const uint8_t* block, bool five_bits, BlockParts* parts) {
  parts->d = u16_at(block);
  parts->m = u16_at(block + 2) ^ 0x8000;
  read_k_scales(block + 4, parts);
  const uint8_t* high = block + 16;
  const uint8_t* qs = block + (five_bits ? 48 : 16);
  for (int s = 0; s < 8; ++s)
    for (int k = 0; k < 32; ++k) {
      const uint8_t both = qs[s / 2 * 32 + k];
      const int low = s % 2 == 0 ? both & 15 : both >> 4;
      parts->q[s * 32 + k] =
          static_cast<uint8_t>(low | (five_bits ? (high[k] >> s & 1) << 4 : 0));
    }
}

// 256 values: low nibbles (128 B), high pairs (64 B), 16 signed scales, f16 d.
void read_q6_k(const uint8_t* block, BlockParts* parts) {
  memcpy(parts->scale, block + 192, 16);
  parts->d = u16_at(block + 208);
  uint8_t* q = parts->q;
  const uint8_t *low = block, *high = block + 128;
  for (int half = 0; half < 2; ++half, low += 64, high += 32, q += 128)
    for (int part = 0; part < 4; ++part)
      for (int k = 0; k < 32; ++k) {
        const uint8_t nibbles = low[k + part % 2 * 32];
        q[part * 32 + k] = static_cast<uint8_t>((part < 2 ? nibbles & 15 : nibbles >> 4) |
                                                (high[k] >> (2 * part) & 3) << 4);
      }
}

}  // namespace

float f16_value(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
  uint32_t u;
  if (exponent == 0) {
    const float f = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -f : f;
  }
  if (exponent == 31)
    u = sign | 0x7f800000 | mantissa << 13;
  else
    u = sign | (exponent + 112) << 23 | mantissa << 13;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

int64_t block_values(int32_t dtype) {
  if (dtype == RT_Q4_K || dtype == RT_Q5_K || dtype == RT_Q6_K) return 256;
  return block_bytes(dtype) > 0 ? 32 : 1;
}

int64_t block_bytes(int32_t dtype) {
  switch (dtype) {
    case RT_Q4_0: return 18;
    case RT_Q4_1: return 20;
    case RT_Q5_0: return 22;
    case RT_Q5_1: return 24;
    case RT_Q8_0: return 34;
    case RT_Q4_K: return 144;
    case RT_Q5_K: return 176;
    case RT_Q6_K: return 210;
    default: return 0;
  }
}

void read_block(const uint8_t* block, int32_t dtype, BlockParts* parts) {
  parts->d = u16_at(block);
  parts->m = 0;
  parts->scale[0] = 1;
  parts->min[0] = 1;
  switch (dtype) {
    case RT_Q4_0: return read_nibbles(block + 2, 0, parts->q);
    case RT_Q4_1:
      parts->m = u16_at(block + 2);
      return read_nibbles(block + 4, 0, parts->q);
    case RT_Q5_0: return read_nibbles(block + 6, fifth_bits(block + 2), parts->q);
    case RT_Q5_1:
      parts->m = u16_at(block + 2);
      return read_nibbles(block + 8, fifth_bits(block + 4), parts->q);
    case RT_Q8_0:
      for (int k = 0; k < 32; ++k) parts->q[k] = block[2 + k] ^ 0x80;
      return;
    case RT_Q4_K: return read_q4_k(block, false, parts);
    case RT_Q5_K: return read_q4_k(block, true, parts);
    case RT_Q6_K: return read_q6_k(block, parts);
    default: return;
  }
}

}  // namespace rt
