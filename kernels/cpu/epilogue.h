// What happens to finished accumulator tiles: bias, residual, silu * up, arg-max.
//
// Included per instruction set (see simd.h). A tile is [rows][16] f32, rows contiguous.
#pragma once

#include "linear.h"
#include "simd.h"

namespace rt {
namespace RT_ISA {

constexpr int kPanelVecs = kPanel / kLanes;

RT_INLINE void finish_store(const LinearArgs& args, int part, int column, int columns, int m0,
                            int rows, const float* tile) {
  const float* bias = args.bias[part] == nullptr ? nullptr : args.bias[part] + column;
  const bool add = args.epilogue == Epilogue::kAdd;
  float* out = args.out + m0 * args.out_stride + args.out_column[part] + column;
  for (int r = 0; r < rows; ++r, out += args.out_stride, tile += kPanel) {
    if (columns == kPanel) {
      for (int v = 0; v < kPanel; v += kLanes) {
        Vec acc = load(tile + v);
        if (bias != nullptr) acc = acc + load(bias + v);
        if (add) acc = load(out + v) + acc;
        store(out + v, acc);
      }
    } else {
      for (int c = 0; c < columns; ++c) {
        float acc = tile[c];
        if (bias != nullptr) acc = acc + bias[c];
        out[c] = add ? out[c] + acc : acc;
      }
    }
  }
}

RT_INLINE void finish_argmax(ThreadScratch& scratch, int column, int columns, int m0, int rows,
                             const float* tile) {
  for (int r = 0; r < rows; ++r, tile += kPanel) {
    Best& best = scratch.best[m0 + r];
    // Most panels hold no new maximum: one vector comparison settles them.
    if (columns == kPanel) {
      Vec top = load(tile);
      for (int v = kLanes; v < kPanel; v += kLanes) top = max(top, load(tile + v));
      if (max_lanes(top) < best.value) continue;
    }
    for (int c = 0; c < columns; ++c) {
      const bool better = tile[c] > best.value ||
                          (tile[c] == best.value && column + c < best.index);
      if (better) best = {tile[c], column + c};
    }
  }
}

RT_INLINE void finish_tile(const LinearArgs& args, ThreadScratch& scratch, int part, int panel,
                           int m0, int rows, const float* tile) {
  const int column = panel * kPanel;
  const int left = args.weight[part]->n - column;
  const int columns = left < kPanel ? left : kPanel;
  if (args.epilogue == Epilogue::kArgmax)
    finish_argmax(scratch, column, columns, m0, rows, tile);
  else
    finish_store(args, part, column, columns, m0, rows, tile);
}

RT_INLINE void finish_gated(const LinearArgs& args, int panel, int m0, int rows, const float* gate,
                            const float* up) {
  const int column = panel * kPanel;
  const Activation* act = args.out_activation;
  for (int r = 0; r < rows; ++r, gate += kPanel, up += kPanel) {
    // Padded columns come out as silu(0) * 0 = 0, which is what the activation's padding must hold.
    float* f32 = args.epilogue == Epilogue::kSiluMulF32
                     ? args.out + (m0 + r) * args.out_stride + column
                     : nullptr;
    for (int v = 0; v < kPanel; v += kLanes) {
      const Vec y = silu(load(gate + v)) * load(up + v);
      if (f32 != nullptr)
        store(f32 + v, y);
      else if (act->formats & kActF32)
        store(act->f32 + static_cast<int64_t>(m0 + r) * act->k_padded + column + v, y);
      else
        store_bf16(act->bf16_at(m0 + r, column) + v, y);
    }
  }
}

}  // namespace RT_ISA
}  // namespace rt
