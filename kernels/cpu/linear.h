// What a linear layer is made of: packed weights, activations in the layout kernels read, one unit
// of work. Every instruction set shares these layouts; only the arithmetic differs.
//
// Invariance: an output element is summed over K in one fixed order whatever M, the unit or the
// thread; units split N and M, never K.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aligned_buffer.h"

namespace rt {

constexpr int kPanel = 16;    // output columns of a panel: one AMX tile, one AVX-512 register
constexpr int kKBlock = 32;   // K of a bf16 tile, and of a quantisation block
constexpr int kTileRows = 16;

enum class WeightKind : int32_t {
  kNone, kBf16, kF32, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kW8A8, kW8A16,
};

inline int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// A weight [n, k] packed into panels of 16 output columns, each panel contiguous over K, padded
// with zeros:
//   kBf16  [n/16][k/32][16 pairs][16 columns][2]
//   kF32   [n/16][k][16 columns]
//   kQ*    [n/16][k/32 or k/256] blocks, see quant_layout.h
//   kW8A8  [n/16][k/64][16 quads][16 columns][4], one f32 scale per column in `scales`
//   kW8A16 the same, the two middle values of a quad exchanged
struct PackedWeight {
  WeightKind kind = WeightKind::kNone;
  int n = 0, k = 0;
  int k_padded = 0;
  int num_panels = 0;
  size_t panel_bytes = 0;
  uint8_t* data = nullptr;  // both in the model's arena
  float* scales = nullptr;

  const uint8_t* panel(int p) const { return data + static_cast<size_t>(p) * panel_bytes; }
  size_t bytes() const {
    return panel_bytes * static_cast<size_t>(num_panels) +
           (scales == nullptr ? 0 : static_cast<size_t>(n) * sizeof(float));
  }
};

enum ActivationFormat : uint32_t {
  kActBf16 = 1, kActF32 = 2, kActQ8 = 4, kActRowQ8 = 8,
  kActWide = 16,  // beside kActQ8, where bf16 tiles multiply its integers
};

// Input rows of a linear layer, in every format its weights ask for.
//   bf16: tiles of tile_rows x 32, [m/tile_rows][k/32][tile_rows][32]
//   f32: row-major, stride k_padded
//   q8: int8 in the same tiling as bf16 (32 bytes a row), scale and sum per (row, block of 32), the
//     sum also per half of a block, all in f32 and in the order of q8_block()
//   wide: the integers of q8 as bf16, tiled as bf16, the two middle values of a quad exchanged
//   row_q8: int8 in tiles of tile_rows x 64, one scale per row
struct Activation {
  uint32_t formats = 0;
  int k = 0, k_padded = 0;
  int tile_rows = kTileRows;
  uint16_t* bf16 = nullptr;
  float* f32 = nullptr;
  int8_t* q8 = nullptr;
  float* q8_scale = nullptr;  // [m/tile_rows][k/32][tile_rows]
  float* q8_sum = nullptr;    // the same
  float* q8_half_sum = nullptr;  // the same, [2] within
  uint16_t* wide = nullptr;
  int8_t* row_q8 = nullptr;
  float* row_scale = nullptr;  // [m]

  uint16_t* bf16_at(int m, int k0) const {
    const int kt = k_padded / 32;
    return bf16 + (static_cast<int64_t>(m / tile_rows) * kt + k0 / 32) * tile_rows * 32 +
           (m % tile_rows) * 32 + k0 % 32;
  }
  // Where block b of row m stands; the next block is tile_rows further.
  int64_t q8_block(int m, int b) const {
    return (static_cast<int64_t>(m / tile_rows) * (k_padded / 32) + b) * tile_rows + m % tile_rows;
  }
  int8_t* q8_at(int m, int k0) const { return q8 + q8_block(m, k0 / 32) * 32 + k0 % 32; }
  uint16_t* wide_at(int m, int b) const { return wide + q8_block(m, b) * 32; }
  int k_padded_row_q8() const { return (k + 63) / 64 * 64; }
  int8_t* row_q8_at(int m, int k0) const {
    const int kt = k_padded_row_q8() / 64;
    return row_q8 + (static_cast<int64_t>(m / tile_rows) * kt + k0 / 64) * tile_rows * 64 +
           (m % tile_rows) * 64 + k0 % 64;
  }
};

enum class Epilogue : int32_t {
  kStore,     // out = acc + bias
  kAdd,       // out += acc + bias (the residual stream)
  kSiluMul,   // part 0 is the gate, part 1 the up projection: act = silu(gate) * up
  kSiluMulF32,  // the same into out, for activations that are quantised row by row afterwards
  kArgmax,    // only the best column of each row, per thread
};

// Up to three weights that read the same activation (q, k, v), or gate and up.
struct LinearArgs {
  const PackedWeight* weight[3] = {};
  const float* bias[3] = {};
  int out_column[3] = {};  // where each part's columns start in out
  int num_parts = 0;
  const Activation* input = nullptr;
  int m = 0;
  Epilogue epilogue = Epilogue::kStore;
  float* out = nullptr;
  int64_t out_stride = 0;
  const Activation* out_activation = nullptr;

  bool is_gated() const {
    return epilogue == Epilogue::kSiluMul || epilogue == Epilogue::kSiluMulF32;
  }
};

// Panels [first_panel, first_panel + num_panels) of one part (of both parts when gated), rows [m0, m1).
struct LinearUnit {
  int part, first_panel, num_panels, m0, m1;
};

struct Best {
  float value;
  int32_t index;
};

// What one thread owns during a step.
struct ThreadScratch {
  alignas(64) float tiles[8][kTileRows * kPanel];
  alignas(64) uint8_t staging[16384];
  Best* best = nullptr;      // [rows] for Epilogue::kArgmax
  uint8_t* attention = nullptr;  // see attention.h
  uint8_t* panels = nullptr;     // [widened_panel_bytes(k)] x 2, see below
  uint64_t tile_config = 0;      // which AMX configuration is loaded
  uint32_t saved_float_mode = 0;
};

// Room for one panel of k columns unpacked for tiles: values as bf16, up to three f32 a column and
// block of 32.
inline size_t widened_panel_bytes(int64_t k) {
  return static_cast<size_t>(round_up(k, 64) / kKBlock) * (1024 + 3 * kPanel * sizeof(float));
}

// How a layer is cut into units; the same for every thread.
struct LinearPlan {
  int m_block = 1, num_m_blocks = 1, panels_per_unit = 1;
  int units_per_part[3] = {};
  int units_per_m_block = 0;
  int num_units = 0;

  LinearUnit unit(const LinearArgs& args, int index) const;
};

LinearPlan plan_linear(const LinearArgs& args, int num_threads);

}  // namespace rt
