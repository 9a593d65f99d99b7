#include "packing.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "gguf_blocks.h"
#include "quant_layout.h"

namespace rt {
namespace {

float bf16_value(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

uint16_t bf16_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(u >> 16 | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

int64_t bf16_index(int64_t k, int column) {
  return (k / 32 * 16 + k % 32 / 2) * 32 + column * 2 + k % 2;
}

bool is_eight_bit(WeightKind kind) {
  return kind == WeightKind::kW8A8 || kind == WeightKind::kW8A16;
}

int64_t eight_bit_index(WeightKind kind, int64_t k, int column) {
  constexpr int kExchanged[4] = {0, 2, 1, 3};
  const int64_t in_quad = kind == WeightKind::kW8A16 ? kExchanged[k % 4] : k % 4;
  return (k / 64 * 16 + k % 64 / 4) * 64 + column * 4 + in_quad;
}

void pack_bf16_row(const void* data, int32_t dtype, int64_t row, int64_t cols, int column,
                   float* values, uint16_t* panel) {
  if (dtype == RT_BF16) {
    const uint16_t* source = static_cast<const uint16_t*>(data) + row * cols;
    int64_t k = 0;
    for (; k + 2 <= cols; k += 2) memcpy(panel + bf16_index(k, column), source + k, 4);
    if (k < cols) panel[bf16_index(k, column)] = source[k];
    return;
  }
  read_source_row(data, dtype, row, cols, values);
  for (int64_t k = 0; k < cols; ++k) panel[bf16_index(k, column)] = bf16_bits(values[k]);
}

void pack_eight_bit_row(WeightKind kind, const float* values, int64_t cols, int column,
                        int8_t* panel, float* scale) {
  float top = 0.0f;
  for (int64_t k = 0; k < cols; ++k) top = std::max(top, std::fabs(values[k]));
  *scale = top / 127.0f;
  const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
  for (int64_t k = 0; k < cols; ++k)
    panel[eight_bit_index(kind, k, column)] =
        static_cast<int8_t>(std::lrintf(values[k] * inverse));
}

}  // namespace

WeightKind weight_kind(int32_t dtype, int32_t weight_format, int32_t compute_dtype) {
  const bool is_float = dtype == RT_F32 || dtype == RT_F16 || dtype == RT_BF16;
  if (weight_format == RT_W8A8 || weight_format == RT_W8A16) {
    if (!is_float || compute_dtype != RT_BF16) return WeightKind::kNone;
    return weight_format == RT_W8A8 ? WeightKind::kW8A8 : WeightKind::kW8A16;
  }
  if (weight_format != RT_KEEP) return WeightKind::kNone;
  // In f32 every source is widened: that mode is for exactness, not size.
  if (compute_dtype == RT_F32)
    return is_float || block_bytes(dtype) > 0 ? WeightKind::kF32 : WeightKind::kNone;
  if (is_float) return WeightKind::kBf16;
  return block_kind(dtype);
}

uint32_t activation_format(WeightKind kind) {
  switch (kind) {
    case WeightKind::kNone: return 0;
    case WeightKind::kBf16:
    case WeightKind::kW8A16: return kActBf16;
    case WeightKind::kF32: return kActF32;
    case WeightKind::kW8A8: return kActRowQ8;
    default: return kActQ8;
  }
}

int64_t source_row_bytes(int32_t dtype, int64_t cols) {
  if (dtype == RT_F32) return cols * 4;
  if (dtype == RT_F16 || dtype == RT_BF16) return cols * 2;
  return cols / block_values(dtype) * block_bytes(dtype);
}

void read_source_row(const void* data, int32_t dtype, int64_t row, int64_t cols, float* out) {
  const uint8_t* source = static_cast<const uint8_t*>(data) + row * source_row_bytes(dtype, cols);
  if (dtype == RT_F32) {
    memcpy(out, source, sizeof(float) * static_cast<size_t>(cols));
  } else if (dtype == RT_BF16 || dtype == RT_F16) {
    const uint16_t* h = reinterpret_cast<const uint16_t*>(source);
    for (int64_t k = 0; k < cols; ++k) out[k] = dtype == RT_BF16 ? bf16_value(h[k]) : f16_value(h[k]);
  } else {
    dequantise_row(dtype, source, cols, out);
  }
}

PackedWeight pack_weight(const void* data, int32_t dtype, int64_t rows, int64_t cols,
                         WeightKind kind, ThreadPool& pool, Arena& arena) {
  PackedWeight w;
  w.kind = kind;
  w.n = static_cast<int>(rows);
  w.k = static_cast<int>(cols);
  w.k_padded = static_cast<int>(round_up(cols, is_eight_bit(kind) ? 64 : kKBlock));
  w.num_panels = static_cast<int>((rows + kPanel - 1) / kPanel);
  const size_t k_padded = static_cast<size_t>(w.k_padded);
  switch (kind) {
    case WeightKind::kBf16: w.panel_bytes = k_padded * kPanel * 2; break;
    case WeightKind::kF32: w.panel_bytes = k_padded * kPanel * 4; break;
    case WeightKind::kW8A8:
    case WeightKind::kW8A16: w.panel_bytes = k_padded * kPanel; break;
    default:
      w.panel_bytes =
          k_padded / static_cast<size_t>(quant_block_values(kind)) * quant_block_bytes(kind);
  }
  // Room behind the last panel: kernels may load whole vectors past its end.
  w.data = static_cast<uint8_t*>(
      arena.take(w.panel_bytes * static_cast<size_t>(w.num_panels) + 4096));
  if (is_eight_bit(kind))
    w.scales = static_cast<float*>(
        arena.take(static_cast<size_t>(w.num_panels) * kPanel * sizeof(float)));
  pool.run([&](int) {
    std::vector<float> values(k_padded);
    for (int p = pool.claim(); p < w.num_panels; p = pool.claim()) {
      uint8_t* panel = w.data + static_cast<size_t>(p) * w.panel_bytes;
      for (int column = 0; column < kPanel && p * kPanel + column < w.n; ++column) {
        const int64_t row = p * kPanel + column;
        if (kind == WeightKind::kBf16) {
          pack_bf16_row(data, dtype, row, cols, column, values.data(),
                        reinterpret_cast<uint16_t*>(panel));
        } else if (kind == WeightKind::kF32) {
          read_source_row(data, dtype, row, cols, values.data());
          for (int64_t k = 0; k < cols; ++k)
            reinterpret_cast<float*>(panel)[k * kPanel + column] = values[k];
        } else if (is_eight_bit(kind)) {
          read_source_row(data, dtype, row, cols, values.data());
          pack_eight_bit_row(kind, values.data(), cols, column, reinterpret_cast<int8_t*>(panel),
                             w.scales + row);
        } else {
          const uint8_t* blocks = static_cast<const uint8_t*>(data);
          pack_quant_row(dtype, blocks + row * source_row_bytes(dtype, cols), cols, column, panel);
        }
      }
    }
  });
  return w;
}

void unpack_row(const PackedWeight& w, int64_t n, float* out) {
  const uint8_t* panel = w.panel(static_cast<int>(n / kPanel));
  const int column = static_cast<int>(n % kPanel);
  switch (w.kind) {
    case WeightKind::kBf16:
      for (int k = 0; k < w.k; ++k)
        out[k] = bf16_value(reinterpret_cast<const uint16_t*>(panel)[bf16_index(k, column)]);
      return;
    case WeightKind::kF32:
      for (int k = 0; k < w.k; ++k)
        out[k] = reinterpret_cast<const float*>(panel)[static_cast<int64_t>(k) * kPanel + column];
      return;
    case WeightKind::kW8A8:
    case WeightKind::kW8A16: {
      const float scale = w.scales[n];
      for (int k = 0; k < w.k; ++k)
        out[k] = scale * static_cast<float>(reinterpret_cast<const int8_t*>(
                             panel)[eight_bit_index(w.kind, k, column)]);
      return;
    }
    default: unpack_quant_row(w.kind, panel, w.k, column, out);
  }
}

}  // namespace rt
