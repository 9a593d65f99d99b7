// GGUF blocks on bf16 tiles for many rows: the integers of both sides as bf16, which holds them
// exactly, so that a block's product is the same integer that linear_quant.h finds, already in f32.
//
// 8-bit tiles would not be faster: a block of 32 fills half of their depth, and their sums are to be
// converted. Scales are applied as there, in the same order. A panel is unpacked once for all rows
// of a unit.
#pragma once

#include "amx_tiles.h"
#include "linear_quant.h"
#include "widen_amx.h"

namespace rt {
namespace RT_ISA {

// Below these many rows unpacking a panel costs more than the tiles gain.
constexpr int kWideRows = 16;
constexpr int wide_rows_of(WeightKind kind) { return kind == WeightKind::kQ6_K ? kWideRows : 24; }
// Rows that pass over a stretch of a panel while it stays in L1, and the stretch.
constexpr int kGroupTiles = 4;
constexpr int kStretchBlocks = 16;
// Fewer rows left over do not get a tile: for them the panel, still in a cache, is read as stored.
constexpr int kFewestTileRows = 7;

// One panel unpacked for tiles, in a thread's scratch.
struct WidePanel {
  uint8_t* tiles;  // [k/32][16 pairs][16 columns][2] bf16, pairs in the order of Activation::wide
  float* scale;    // [k/32][halves][16]
  float* min;      // [k/32][16]

  WidePanel(uint8_t* memory, int blocks, int halves)
      : tiles(memory),
        scale(reinterpret_cast<float*>(memory + blocks * 1024)),
        min(scale + blocks * halves * kPanel) {}
};

// Brings the panel behind this one into L2 on the way.
template <WeightKind kKind>
static void widen_panel(const uint8_t* panel, int blocks, const WidePanel& out) {
  constexpr QuantTraits t = quant_traits(kKind);
  constexpr int kHalves = halves_of(kKind);
  const size_t ahead = quant_block_bytes(kKind) * static_cast<size_t>(blocks / t.sub_blocks);
  for (int b = 0; b < blocks; b += t.sub_blocks, panel += quant_block_bytes(kKind)) {
    for (size_t line = 0; line < quant_block_bytes(kKind); line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(panel + ahead + line), _MM_HINT_T1);
    BlockScales<kKind> scales;
    scales.load(panel + quant_scale_offset(kKind));
    memcpy(out.scale + b * kHalves * kPanel, scales.scale, sizeof scales.scale);
    if (t.has_min) memcpy(out.min + b * kPanel, scales.min, sizeof scales.min);
    for (int s = 0; s < t.sub_blocks; ++s)
      widen_sub_block<kKind>(panel + s * quant_sub_bytes(kKind), out.tiles + (b + s) * 1024);
  }
}

// `count` blocks of 16 rows into tiles 0 .. 3, a tile each or two.
template <int kHalves>
RT_INLINE void multiply_blocks(const uint16_t* a, const uint8_t* tile, int count) {
  constexpr int kRow = kTileRows * kKBlock;
  if (kHalves == 2) {
    _tile_zero(0);
    _tile_loadd(4, a, 64);
    _tile_loadd(6, tile, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_zero(1);
    _tile_loadd(5, a + kKBlock / 2, 64);
    _tile_loadd(7, tile + 512, 64);
    _tile_dpbf16ps(1, 5, 7);
    if (count < 2) return;
    _tile_zero(2);
    _tile_loadd(4, a + kRow, 64);
    _tile_loadd(6, tile + 1024, 64);
    _tile_dpbf16ps(2, 4, 6);
    _tile_zero(3);
    _tile_loadd(5, a + kRow + kKBlock / 2, 64);
    _tile_loadd(7, tile + 1536, 64);
    _tile_dpbf16ps(3, 5, 7);
    return;
  }
  _tile_zero(0);
  _tile_loadd(4, a, 64);
  _tile_loadd(6, tile, 64);
  _tile_dpbf16ps(0, 4, 6);
  if (count < 2) return;
  _tile_zero(1);
  _tile_loadd(5, a + kRow, 64);
  _tile_loadd(7, tile + 1024, 64);
  _tile_dpbf16ps(1, 5, 7);
  if (count < 3) return;
  _tile_zero(2);
  _tile_loadd(4, a + 2 * kRow, 64);
  _tile_loadd(6, tile + 2048, 64);
  _tile_dpbf16ps(2, 4, 6);
  if (count < 4) return;
  _tile_zero(3);
  _tile_loadd(5, a + 3 * kRow, 64);
  _tile_loadd(7, tile + 3072, 64);
  _tile_dpbf16ps(3, 5, 7);
}

// Adds blocks [b0, b1) of 16 rows at m0 to sums. Up to four tiles of products are under way while the
// ones before them, read back from memory, are scaled: a tile's sums take some 50 cycles.
template <WeightKind kKind>
static void wide_stretch(const Activation& in, int m0, const WidePanel& panel, int b0, int b1,
                         float* sums) {
  constexpr int kHalves = halves_of(kKind), kTile = kTileRows * kPanel;
  constexpr int kPhase = 4 / kHalves;
  alignas(64) float dots[2][4 * kTile];
  __m512 acc[kTileRows];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r)
    acc[r] = b0 == 0 ? _mm512_setzero_ps() : _mm512_load_ps(sums + r * kPanel);
  const int64_t first = in.q8_block(m0, b0);
  const uint16_t* a = in.wide + first * kKBlock;
  const float* a_scale = in.q8_scale + first;
  const float* a_sum = in.q8_sum + first;
  const uint8_t* tile = panel.tiles + b0 * 1024;
  const float* scale = panel.scale + b0 * kHalves * kPanel;
  const float* min = panel.min + b0 * kPanel;
  int slot = 0;
  for (int b = b0 - kPhase; b < b1; b += kPhase, slot ^= 1) {
    const int next = b + kPhase;
    if (next < b1) {
      multiply_blocks<kHalves>(a, tile, b1 - next);
      a += kPhase * kTileRows * kKBlock;
      tile += kPhase * 1024;
    }
    const float* dot = dots[slot];
    for (int i = b < b0 ? kPhase : 0; i < kPhase && b + i < b1; ++i) {
      const __m512 s0 = _mm512_load_ps(scale), s1 = _mm512_load_ps(scale + (kHalves - 1) * kPanel);
      __m512 least = _mm512_setzero_ps();
      if (quant_traits(kKind).has_min) least = _mm512_load_ps(min);
#pragma GCC unroll 16
      for (int r = 0; r < kTileRows; ++r) {
        __m512 total = _mm512_mul_ps(s0, _mm512_load_ps(dot + r * kPanel));
        if (kHalves == 2)
          total = _mm512_fmadd_ps(s1, _mm512_load_ps(dot + kTile + r * kPanel), total);
        if (quant_traits(kKind).has_min)
          total = _mm512_fmadd_ps(least, _mm512_set1_ps(a_sum[r]), total);
        acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(a_scale[r]), total, acc[r]);
      }
      dot += kHalves * kTile;
      a_scale += kTileRows;
      a_sum += kTileRows;
      scale += kHalves * kPanel;
      min += kPanel;
    }
    if (next < b1) {
      float* out = dots[slot ^ 1];
      _tile_stored(0, out, 64);
      _tile_stored(1, out + kTile, 64);
      _tile_stored(2, out + 2 * kTile, 64);
      _tile_stored(3, out + 3 * kTile, 64);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r) _mm512_store_ps(sums + r * kPanel, acc[r]);
}

template <WeightKind kKind>
static void quant_unit_tiles(const LinearArgs& args, const LinearUnit& unit,
                             ThreadScratch& scratch) {
  const Activation& in = *args.input;
  const int blocks = in.k_padded / kKBlock, parts = args.is_gated() ? 2 : 1;
  configure(scratch, halves_of(kKind) == 2 ? kHalfDepth : tile_shape(kTileRows, kTileRows));
  const WidePanel wide[2] = {
      {scratch.panels, blocks, halves_of(kKind)},
      {scratch.panels + widened_panel_bytes(in.k_padded), blocks, halves_of(kKind)}};
  const auto panel_of_part = [&](int part, int panel) {
    return args.weight[args.is_gated() ? part : unit.part]->panel(panel);
  };
  for (int p = unit.first_panel; p < unit.first_panel + unit.num_panels; ++p) {
    for (int i = 0; i < parts; ++i)
      widen_panel<kKind>(panel_of_part(i, p), blocks, wide[i]);
    for (int group = unit.m0; group < unit.m1; group += kGroupTiles * kTileRows) {
      const int rows_left = unit.m1 - group;
      const int left = (rows_left + kTileRows - 1) / kTileRows;
      const int count = left < kGroupTiles ? left : kGroupTiles;
      const int last = group + (count - 1) * kTileRows;
      const bool has_rest = unit.m1 - last < kFewestTileRows;
      const int tiles = has_rest ? count - 1 : count;
      for (int i = 0; i < parts; ++i) {
        if (has_rest)
          quant_tile<kKind>(in, panel_of_part(i, p), last, unit.m1,
                            scratch.tiles[i * kGroupTiles + tiles]);
        for (int b = 0; b < blocks; b += kStretchBlocks) {
          const int end = b + kStretchBlocks < blocks ? b + kStretchBlocks : blocks;
          for (int t = 0; t < tiles; ++t)
            wide_stretch<kKind>(in, group + t * kTileRows, wide[i], b, end,
                                scratch.tiles[i * kGroupTiles + t]);
        }
      }
      for (int t = 0; t < count; ++t) {
        const int m = group + t * kTileRows;
        const int rows = unit.m1 - m < kTileRows ? unit.m1 - m : kTileRows;
        if (parts == 2)
          finish_gated(args, p, m, rows, scratch.tiles[t], scratch.tiles[kGroupTiles + t]);
        else
          finish_tile(args, scratch, unit.part, p, m, rows, scratch.tiles[t]);
      }
    }
  }
}

static void linear_unit_quant_amx(const LinearArgs& args, const LinearUnit& unit,
                                  ThreadScratch& scratch) {
  const WeightKind kind = args.weight[unit.part]->kind;
  if (!(args.input->formats & kActWide) || unit.m1 - unit.m0 < wide_rows_of(kind))
    return linear_unit_quant(args, unit, scratch);
  with_quant_kind(kind, [&](auto one) {
    quant_unit_tiles<decltype(one)::value>(args, unit, scratch);
  });
}

}  // namespace RT_ISA
}  // namespace rt
