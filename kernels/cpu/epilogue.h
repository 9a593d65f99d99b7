// What happens to finished accumulator tiles: bias, residual, silu * up, arg-max.
//
// Included per instruction set (see simd.h). A tile is [rows][16] f32, rows contiguous.
#pragma once

#include "linear.h"
#include "simd.h"

namespace rt {
namespace RT_ISA {

constexpr int kPanelVecs = kPanel / kLanes;

template <bool kAdd>
static __attribute__((noinline)) void finish_rows(float* out, int64_t stride, const float* bias,
                                                  int rows, const float* tile) {
  if (bias != nullptr) {
    for (int r = 0; r < rows; ++r, out += stride, tile += kPanel)
      for (int v = 0; v < kPanel; v += kLanes) {
        const Vec acc = load(tile + v) + load(bias + v);
        store(out + v, kAdd ? load(out + v) + acc : acc);
      }
    return;
  }
  for (int r = 0; r < rows; ++r, out += stride, tile += kPanel)
    for (int v = 0; v < kPanel; v += kLanes)
      store(out + v, kAdd ? load(out + v) + load(tile + v) : load(tile + v));
}

static __attribute__((noinline)) void finish_ragged(float* out, int64_t stride, const float* bias,
                                                    bool add, int columns, int rows,
                                                    const float* tile) {
  for (int r = 0; r < rows; ++r, out += stride, tile += kPanel)
    for (int c = 0; c < columns; ++c) {
      const float acc = bias == nullptr ? tile[c] : tile[c] + bias[c];
      out[c] = add ? out[c] + acc : acc;
    }
}

RT_INLINE void finish_store(const LinearArgs& args, int part, int column, int columns, int m0,
                            int rows, const float* tile) {
  const float* bias = args.bias[part] == nullptr ? nullptr : args.bias[part] + column;
  const bool add = args.epilogue == Epilogue::kAdd;
  float* out = args.out + m0 * args.out_stride + args.out_column[part] + column;
  if (columns != kPanel)
    finish_ragged(out, args.out_stride, bias, add, columns, rows, tile);
  else if (add)
    finish_rows<true>(out, args.out_stride, bias, rows, tile);
  else
    finish_rows<false>(out, args.out_stride, bias, rows, tile);
}

static __attribute__((noinline)) void finish_argmax(ThreadScratch& scratch, int column, int columns, int m0, int rows,
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

static __attribute__((noinline)) void finish_tile(const LinearArgs& args, ThreadScratch& scratch, int part, int panel,
                           int m0, int rows, const float* tile) {
  const int column = panel * kPanel;
  const int left = args.weight[part]->n - column;
  const int columns = left < kPanel ? left : kPanel;
  if (args.epilogue == Epilogue::kArgmax)
    finish_argmax(scratch, column, columns, m0, rows, tile);
  else
    finish_store(args, part, column, columns, m0, rows, tile);
}

static __attribute__((noinline)) void finish_gated(const LinearArgs& args, int panel, int m0,
                                                   int rows, const float* gate, const float* up) {
  const int column = panel * kPanel;
  const Activation* act = args.out_activation;
  // Padded columns come out as silu(0) * 0 = 0.
  if (args.epilogue == Epilogue::kSiluMul && !(act->formats & kActF32)) {
    // A unit's rows start at a tile, so one address and a fixed step reach them all.
    uint16_t* out = act->bf16_at(m0, column);
    for (int r = 0; r < rows; ++r, gate += kPanel, up += kPanel, out += kKBlock)
      for (int v = 0; v < kPanel; v += kLanes)
        store_bf16(out + v, silu_short(load(gate + v)) * load(up + v));
    return;
  }
  const bool rows_out = args.epilogue == Epilogue::kSiluMulF32;
  const int64_t stride = rows_out ? args.out_stride : act->k_padded;
  float* out = (rows_out ? args.out : act->f32) + m0 * stride + column;
  for (int r = 0; r < rows; ++r, gate += kPanel, up += kPanel, out += stride)
    for (int v = 0; v < kPanel; v += kLanes) store(out + v, silu(load(gate + v)) * load(up + v));
}

}  // namespace RT_ISA
}  // namespace rt
