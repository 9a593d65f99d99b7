#include "gguf_blocks.h"

#include <cmath>
#include <cstring>

#include "abi.h"

namespace rt {
namespace {

float f16_at(const uint8_t* p) {
  uint16_t h;
  memcpy(&h, p, 2);
  return f16_value(h);
}

void dequantise_q4(const uint8_t* block, bool has_min, float* out) {
  const float d = f16_at(block), m = has_min ? f16_at(block + 2) : -8.0f * d;
  const uint8_t* qs = block + (has_min ? 4 : 2);
  for (int k = 0; k < 16; ++k) {
    out[k] = d * static_cast<float>(qs[k] & 15) + m;
    out[k + 16] = d * static_cast<float>(qs[k] >> 4) + m;
  }
}

void dequantise_q8_0(const uint8_t* block, float* out) {
  const float d = f16_at(block);
  for (int k = 0; k < 32; ++k)
    out[k] = d * static_cast<float>(static_cast<int8_t>(block[2 + k]));
}

// 256 values: f16 d and dmin, eight 6-bit scales and minima in 12 bytes, 128 bytes of nibbles.
void dequantise_q4_k(const uint8_t* block, float* out) {
  const float d = f16_at(block), dmin = f16_at(block + 2);
  const uint8_t* packed = block + 4;
  const uint8_t* qs = block + 16;
  for (int s = 0; s < 8; ++s) {
    int scale, min;
    if (s < 4) {
      scale = packed[s] & 63;
      min = packed[s + 4] & 63;
    } else {
      scale = (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4;
      min = (packed[s + 4] >> 4) | (packed[s] >> 6) << 4;
    }
    const uint8_t* q = qs + s / 2 * 32;
    for (int k = 0; k < 32; ++k) {
      const int value = s % 2 == 0 ? q[k] & 15 : q[k] >> 4;
      out[s * 32 + k] = d * static_cast<float>(scale * value) - dmin * static_cast<float>(min);
    }
  }
}

// 256 values: low nibbles (128 B), high pairs (64 B), 16 signed scales, f16 d.
void dequantise_q6_k(const uint8_t* block, float* out) {
  const uint8_t* low = block;
  const uint8_t* high = block + 128;
  const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192);
  const float d = f16_at(block + 208);
  for (int half = 0; half < 2; ++half, low += 64, high += 32, scales += 8, out += 128)
    for (int k = 0; k < 32; ++k)
      for (int part = 0; part < 4; ++part) {
        const uint8_t nibbles = low[k + part % 2 * 32];
        const int q = ((part < 2 ? nibbles & 15 : nibbles >> 4) | (high[k] >> (2 * part) & 3) << 4) - 32;
        out[part * 32 + k] = d * static_cast<float>(scales[part * 2 + k / 16] * q);
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
  if (dtype == RT_Q4_K || dtype == RT_Q6_K) return 256;
  return block_bytes(dtype) > 0 ? 32 : 1;
}

int64_t block_bytes(int32_t dtype) {
  switch (dtype) {
    case RT_Q4_0: return 18;
    case RT_Q4_1: return 20;
    case RT_Q8_0: return 34;
    case RT_Q4_K: return 144;
    case RT_Q6_K: return 210;
    default: return 0;
  }
}

void dequantise_row(const uint8_t* block, int32_t dtype, int64_t cols, float* out) {
  const int64_t values = block_values(dtype);
  for (int64_t at = 0; at < cols; at += values, block += block_bytes(dtype), out += values) {
    switch (dtype) {
      case RT_Q4_0: dequantise_q4(block, false, out); break;
      case RT_Q4_1: dequantise_q4(block, true, out); break;
      case RT_Q8_0: dequantise_q8_0(block, out); break;
      case RT_Q4_K: dequantise_q4_k(block, out); break;
      case RT_Q6_K: dequantise_q6_k(block, out); break;
      default: break;
    }
  }
}

}  // namespace rt
