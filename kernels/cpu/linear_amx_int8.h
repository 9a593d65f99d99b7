// W8A8 linear units on int8 tiles: 64 of K at a time, exact integer sums, one scale at the end.
#pragma once

#include "amx_tiles.h"
#include "linear_amx.h"
#include "linear_quant.h"

namespace rt {
namespace RT_ISA {

// Rows [m0, m0 + <=16) against two panels: tiles[0] and tiles[1] hold int32 afterwards.
static void int8_tiles(const Activation& in, int m0, const uint8_t* b0, const uint8_t* b1,
                       bool stream, ThreadScratch& scratch) {
  const int steps = in.k_padded_row_q8() / 64;
  const int a_step = in.tile_rows * 64;
  const int8_t* a = in.row_q8_at(m0, 0);
  _tile_zero(0);
  _tile_zero(1);
  for (int k = 0; k < steps; ++k, a += a_step, b0 += 1024, b1 += 1024) {
    _tile_loadd(4, a, 64);
    if (stream) prefetch_tile(b0);
    _tile_loadd(6, b0, 64);
    _tile_dpbssd(0, 4, 6);
    if (stream) prefetch_tile(b1);
    _tile_loadd(7, b1, 64);
    _tile_dpbssd(1, 4, 7);
  }
  _tile_stored(0, scratch.tiles[0], 64);
  _tile_stored(1, scratch.tiles[1], 64);
}

// 32 rows against two panels: tiles[0..1] are the first panel's rows, [2..3] the second's.
static void int8_square(const Activation& in, int m0, const uint8_t* b0, const uint8_t* b1,
                        ThreadScratch& scratch) {
  const int steps = in.k_padded_row_q8() / 64;
  const int8_t* a0 = in.row_q8_at(m0, 0);
  const int8_t* a1 = in.row_q8_at(m0 + kTileRows, 0);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int k = 0; k < steps; ++k, a0 += 1024, a1 += 1024, b0 += 1024, b1 += 1024) {
    _tile_loadd(6, b0, 64);
    _tile_loadd(4, a0, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(5, a1, 64);
    _tile_dpbssd(1, 5, 6);
    _tile_loadd(7, b1, 64);
    _tile_dpbssd(2, 4, 7);
    _tile_dpbssd(3, 5, 7);
  }
  _tile_stored(0, scratch.tiles[0], 64);
  _tile_stored(1, scratch.tiles[1], 64);
  _tile_stored(2, scratch.tiles[2], 64);
  _tile_stored(3, scratch.tiles[3], 64);
}

// One row block of two panels (the second may be missing): scale, then the epilogue.
static void finish_int8(const LinearArgs& args, const PanelRef* ref, int count, int m0, int rows,
                        float* first, float* second, ThreadScratch& scratch) {
  float* tile[2] = {first, second};
  for (int i = 0; i < count; ++i)
    scale_w8a8(*args.weight[ref[i].part], ref[i].panel, *args.input, m0, rows, tile[i]);
  if (args.is_gated()) {
    finish_gated(args, ref[0].panel, m0, rows, first, second);
    return;
  }
  for (int i = 0; i < count; ++i)
    finish_tile(args, scratch, ref[i].part, ref[i].panel, m0, rows, tile[i]);
}

static void linear_unit_w8a8(const LinearArgs& args, const LinearUnit& unit,
                             ThreadScratch& scratch) {
  const Activation& in = *args.input;
  const int panels = unit.num_panels * (args.is_gated() ? 2 : 1);
  for (int p = 0; p < panels; p += 2) {
    const int count = panels - p < 2 ? 1 : 2;
    PanelRef ref[2];
    const uint8_t* b[2];
    for (int i = 0; i < 2; ++i) {
      ref[i] = panel_of(args, unit, p + (i < count ? i : 0));
      b[i] = args.weight[ref[i].part]->panel(ref[i].panel);
    }
    int m = unit.m0;
    for (; m + 32 <= unit.m1; m += 32) {
      configure(scratch, tile_shape(kTileRows, kTileRows));
      int8_square(in, m, b[0], b[1], scratch);
      finish_int8(args, ref, count, m, kTileRows, scratch.tiles[0], scratch.tiles[2], scratch);
      finish_int8(args, ref, count, m + kTileRows, kTileRows, scratch.tiles[1], scratch.tiles[3],
                  scratch);
    }
    for (; m < unit.m1; m += kTileRows) {
      const int rows = unit.m1 - m < kTileRows ? unit.m1 - m : kTileRows;
      configure(scratch, tile_shape(rows, rows));
      int8_tiles(in, m, b[0], b[1], m == unit.m0, scratch);
      finish_int8(args, ref, count, m, rows, scratch.tiles[0], scratch.tiles[1], scratch);
    }
  }
}

}  // namespace RT_ISA
}  // namespace rt
