// bf16 and 8-bit linear units on AMX tiles: 32 x 32 outputs at a time, or one row block against four
// panels.
//
// Tiles are used for one row too: a tile load keeps up with memory, and one instruction family for
// every M is what makes an output's bits independent of the batch (AVX-512's bf16 dot product
// rounds differently).
#pragma once

#include "amx_tiles.h"
#include "linear_quant.h"
#include "widen_amx.h"

namespace rt {
namespace RT_ISA {

// Weights come straight from memory when few rows use them; the hardware prefetcher alone leaves a
// fifth of the bandwidth unused.
constexpr int kPrefetchBytes = 2048;

RT_INLINE void prefetch_tile(const uint8_t* p) {
  for (int line = 0; line < 16; ++line)
    _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetchBytes + line * 64), _MM_HINT_T0);
}

// How a kind of weight goes through tiles: bf16 as it lies, w8a16 widened to bf16 on the way, w8a8 as
// integers. A step is one tile of K: 64 bytes of each row.
template <WeightKind kKind>
struct TileForm {
  static constexpr bool kIntegers = kKind == WeightKind::kW8A8;
  static constexpr bool kWidened = kKind == WeightKind::kW8A16;

  static int steps(const Activation& in) {
    return kIntegers ? in.k_padded_row_q8() / 64 : in.k_padded / kKBlock;
  }
  static const uint8_t* rows(const Activation& in, int m0) {
    return kIntegers ? reinterpret_cast<const uint8_t*>(in.row_q8_at(m0, 0))
                     : reinterpret_cast<const uint8_t*>(in.bf16_at(m0, 0));
  }
  // Sums of a tile to values, in place.
  static void scale(const LinearArgs& args, int part, int panel, int m0, int rows, float* tile) {
    const PackedWeight& w = *args.weight[part];
    if (kIntegers) scale_w8a8(w, panel, *args.input, m0, rows, tile);
    if (kWidened)
      for (int r = 0; r < rows; ++r, tile += kPanel)
        store(tile, load(tile) * load(w.scales + panel * kPanel));
  }
};

// Tile numbers are part of the instruction's text, so this cannot be a function.
#define RT_TILE_MULTIPLY(integers, sum, a, b) \
  do {                                        \
    if constexpr (integers)                   \
      _tile_dpbssd(sum, a, b);                \
    else                                      \
      _tile_dpbf16ps(sum, a, b);              \
  } while (0)

// Rows [m0, m0 + <=16) against up to four panels; sums in tiles[0 .. count).
template <WeightKind kKind>
static void few_rows(const Activation& in, int m0, const uint8_t* const* panel, int count,
                     ThreadScratch& scratch) {
  using Form = TileForm<kKind>;
  const int kt = Form::steps(in);
  const uint8_t* a = Form::rows(in, m0);
  const int a_step = in.tile_rows * 64;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (count == 4) {
    const uint8_t *b0 = panel[0], *b1 = panel[1], *b2 = panel[2], *b3 = panel[3];
    for (int k = 0; k < kt; ++k, a += a_step) {
      const int at = k * 1024;
      _tile_loadd(4, a, 64);
      prefetch_tile(b0 + at);
      _tile_loadd(5, b0 + at, 64);
      RT_TILE_MULTIPLY(Form::kIntegers, 0, 4, 5);
      prefetch_tile(b1 + at);
      _tile_loadd(6, b1 + at, 64);
      RT_TILE_MULTIPLY(Form::kIntegers, 1, 4, 6);
      prefetch_tile(b2 + at);
      _tile_loadd(7, b2 + at, 64);
      RT_TILE_MULTIPLY(Form::kIntegers, 2, 4, 7);
      prefetch_tile(b3 + at);
      _tile_loadd(5, b3 + at, 64);
      RT_TILE_MULTIPLY(Form::kIntegers, 3, 4, 5);
    }
    _tile_stored(0, scratch.tiles[0], 64);
    _tile_stored(1, scratch.tiles[1], 64);
    _tile_stored(2, scratch.tiles[2], 64);
    _tile_stored(3, scratch.tiles[3], 64);
    return;
  }
  for (int p = 0; p < count; ++p) {
    const uint8_t* ap = a;
    _tile_zero(0);
    for (int k = 0; k < kt; ++k, ap += a_step) {
      _tile_loadd(4, ap, 64);
      prefetch_tile(panel[p] + k * 1024);
      _tile_loadd(5, panel[p] + k * 1024, 64);
      RT_TILE_MULTIPLY(Form::kIntegers, 0, 4, 5);
    }
    _tile_stored(0, scratch.tiles[p], 64);
  }
}

// The same for weights that are widened as they come from memory, one panel after the other.
static void few_rows_widened(const Activation& in, int m0, const uint8_t* const* panel, int count,
                             ThreadScratch& scratch) {
  const int a_step = in.tile_rows * kKBlock;
  for (int p = 0; p < count; ++p) {
    const uint16_t* a = in.bf16_at(m0, 0);
    const uint8_t* b = panel[p];
    _tile_zero(0);
    for (int k = 0; k < in.k_padded; k += 64, a += 2 * a_step, b += 1024) {
      uint8_t* wide = scratch.staging + k / 64 % 4 * 2048;  // not the one that may still be loading
      prefetch_tile(b);
      widen_w8a16(b, 0, 8, wide);
      _tile_loadd(4, a, 64);
      _tile_loadd(6, wide, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (k + kKBlock >= in.k_padded) break;
      widen_w8a16(b, 8, 16, wide);
      _tile_loadd(4, a + a_step, 64);  // 5 always has 16 rows
      _tile_loadd(7, wide + 1024, 64);
      _tile_dpbf16ps(0, 4, 7);
    }
    _tile_stored(0, scratch.tiles[p], 64);
  }
}

struct PanelRef {
  int part, panel;
};

// The panels of a unit in the order they are computed; gate and up alternate.
RT_INLINE PanelRef panel_of(const LinearArgs& args, const LinearUnit& unit, int index) {
  if (args.is_gated()) return {index % 2, unit.first_panel + index / 2};
  return {unit.part, unit.first_panel + index};
}

// Sums of 32 x 32 outputs that wait for their epilogue: it runs a few rows at a time between the
// tile products of the next 32 x 32.
template <WeightKind kKind>
struct PendingBlock {
  const LinearArgs& args;
  ThreadScratch& scratch;
  PanelRef ref[2] = {};
  int m = 0, rows = 0, done = 0;
  float (*tiles)[kTileRows * kPanel] = nullptr;  // [0..1] the first panel's rows, [2..3] the second's

  // `count` more rows, all in one tile.
  void advance(int count) {
    if (done >= rows) return;
    const int r = done, n = rows - r < count ? rows - r : count;
    float* first = tiles[r / kTileRows] + r % kTileRows * kPanel;
    float* second = tiles[2 + r / kTileRows] + r % kTileRows * kPanel;
    done += count;
    TileForm<kKind>::scale(args, ref[0].part, ref[0].panel, m + r, n, first);
    TileForm<kKind>::scale(args, ref[1].part, ref[1].panel, m + r, n, second);
    if (args.is_gated()) {
      finish_gated(args, ref[0].panel, m + r, n, first, second);
      return;
    }
    finish_tile(args, scratch, ref[0].part, ref[0].panel, m + r, n, first);
    finish_tile(args, scratch, ref[1].part, ref[1].panel, m + r, n, second);
  }
  void flush() {
    while (done < rows) advance(kTileRows - done % kTileRows);
  }
  // Where the next block's sums go, so that these may wait.
  float (*other_tiles())[kTileRows * kPanel] {
    return tiles == scratch.tiles ? scratch.tiles + 4 : scratch.tiles;
  }
};

// Steps of K, a tile each.
struct KRange {
  int begin, end;
};

// Two panels of up to kResidentSteps of K stay in L1 while rows pass; a few more are not worth passing
// twice.
constexpr int kResidentSteps = 18, kMostSteps = 24;

// Into how many parts K is cut for `passes` blocks of 32 rows, whose sums wait in a thread's panels.
template <WeightKind kKind>
RT_INLINE int k_parts(const Activation& in, int passes) {
  const bool has_room = (passes + 1) * 4096u <= 2 * widened_panel_bytes(in.k_padded);
  const int steps = TileForm<kKind>::steps(in);
  if (TileForm<kKind>::kWidened || passes < 3 || steps <= kMostSteps || !has_room) return 1;
  return (steps + kResidentSteps - 1) / kResidentSteps;
}

// Rows [m0, m0 + 17..32) against two panels, into the tiles that `pending` does not use; its rows
// are finished on the way. kFirst: the panels come from memory and are prefetched a little ahead;
// otherwise `ahead` walks the weights of the next panels while this pass computes. Input rows are
// used once per pass: loaded as a stream they leave the two panels in L1. A pass over a part of K
// leaves its sums in `partial`, which is exact, and the next one starts from them.
template <WeightKind kKind, bool kFirst>
static void many_rows(const Activation& in, int m0, KRange steps, float* partial,
                      const uint8_t* b0, const uint8_t* b1, const uint8_t*& ahead, int ahead_lines,
                      PendingBlock<kKind>& pending) {
  using Form = TileForm<kKind>;
  const int kt = steps.end - steps.begin;
  const int slice = kt >= 16 ? 2 : kt >= 8 ? 4 : kTileRows;
  constexpr int kTile = kTileRows * kPanel;
  const uint8_t* a0 = Form::rows(in, m0) + steps.begin * 1024;
  const uint8_t* a1 = Form::rows(in, m0 + kTileRows) + steps.begin * 1024;
  b0 += steps.begin * 1024;
  b1 += steps.begin * 1024;
  if (steps.begin == 0) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, partial, 64);
    _tile_loadd(1, partial + kTile, 64);
    _tile_loadd(2, partial + 2 * kTile, 64);
    _tile_loadd(3, partial + 3 * kTile, 64);
  }
  for (int k = 0; k < kt; ++k, a0 += 1024, a1 += 1024, b0 += 1024, b1 += 1024) {
    if (kFirst) prefetch_tile(b0);
    _tile_loadd(6, b0, 64);
    _tile_stream_loadd(4, a0, 64);
    RT_TILE_MULTIPLY(Form::kIntegers, 0, 4, 6);
    _tile_stream_loadd(5, a1, 64);
    RT_TILE_MULTIPLY(Form::kIntegers, 1, 5, 6);
    if (kFirst) prefetch_tile(b1);
    _tile_loadd(7, b1, 64);
    RT_TILE_MULTIPLY(Form::kIntegers, 2, 4, 7);
    RT_TILE_MULTIPLY(Form::kIntegers, 3, 5, 7);
    pending.advance(slice);
    for (int line = 0; line < ahead_lines; ++line, ahead += 64)
      _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
  }
  if (steps.end < Form::steps(in)) {
    _tile_stored(0, partial, 64);
    _tile_stored(1, partial + kTile, 64);
    _tile_stored(2, partial + 2 * kTile, 64);
    _tile_stored(3, partial + 3 * kTile, 64);
    return;
  }
  pending.flush();
  float(*out)[kTile] = pending.other_tiles();
  _tile_stored(0, out[0], 64);
  _tile_stored(1, out[1], 64);
  _tile_stored(2, out[2], 64);
  _tile_stored(3, out[3], 64);
}

template <WeightKind kKind>
static void linear_unit_tiles(const LinearArgs& args, const LinearUnit& unit,
                              ThreadScratch& scratch) {
  using Form = TileForm<kKind>;
  const Activation& in = *args.input;
  const int panels = unit.num_panels * (args.is_gated() ? 2 : 1);
  const int rows = unit.m1 - unit.m0;
  const int full_end = unit.m0 + rows / 32 * 32;
  const int tail = unit.m1 - full_end;
  const uint8_t* panel[4];
  PanelRef ref[4];
  const bool stream = rows <= kTileRows;
  const int step = stream ? 4 : 2;
  PendingBlock<kKind> pending{args, scratch};
  for (int p = 0; p < panels; p += step) {
    const int count = panels - p < step ? panels - p : step;
    for (int i = 0; i < count; ++i) {
      ref[i] = panel_of(args, unit, p + i);
      panel[i] = args.weight[ref[i].part]->panel(ref[i].panel);
    }
    // What this pass of all rows should pull into L2: the panels right behind these.
    const uint8_t* ahead = panel[count - 1] + args.weight[ref[0].part]->panel_bytes;
    const int passes = rows / 32 > 0 ? rows / 32 : 1;
    const int step_lines = Form::kWidened ? 16 : 32;
    const int ahead_lines = passes >= 3 ? (step_lines + passes - 1) / passes : 0;
    const bool in_scratch = Form::kWidened && !stream;
    if (in_scratch)
      for (int i = 0; i < count; ++i) panel[i] = widen_panel_w8a16(in, panel[i], i, scratch);
    const int k_steps = Form::steps(in), parts = count == 1 ? 1 : k_parts<kKind>(in, passes);
    const int part_steps = (k_steps + parts - 1) / parts;
    for (int k = 0; k < k_steps; k += part_steps)
      for (int m = unit.m0; m < unit.m1; m += 32) {
        const KRange range = {k, k + part_steps < k_steps ? k + part_steps : k_steps};
        const int here = m < full_end ? 32 : tail;
        if (here <= kTileRows || count == 1) {
          if (range.end < k_steps) continue;
          pending.flush();  // few_rows writes the same tiles
          for (int part_m = m; part_m < m + here; part_m += kTileRows) {
            const int r = m + here - part_m < kTileRows ? m + here - part_m : kTileRows;
            configure(scratch, tile_shape(r, r));
            if constexpr (Form::kWidened) {
              if (in_scratch)
                few_rows<WeightKind::kBf16>(in, part_m, panel, count, scratch);
              else
                few_rows_widened(in, part_m, panel, count, scratch);
            } else {
              few_rows<kKind>(in, part_m, panel, count, scratch);
            }
            for (int i = 0; i < count; ++i)
              Form::scale(args, ref[i].part, ref[i].panel, part_m, r, scratch.tiles[i]);
            for (int i = 0; i < count; ++i) {
              if (args.is_gated()) {
                finish_gated(args, ref[i].panel, part_m, r, scratch.tiles[i], scratch.tiles[i + 1]);
                ++i;
              } else {
                finish_tile(args, scratch, ref[i].part, ref[i].panel, part_m, r, scratch.tiles[i]);
              }
            }
          }
          continue;
        }
        configure(scratch, tile_shape(kTileRows, here - kTileRows));
        float* partial = reinterpret_cast<float*>(scratch.panels) + (m - unit.m0) / 32 * 1024;
        if (passes < 3 && m == unit.m0)
          many_rows<kKind, true>(in, m, range, partial, panel[0], panel[1], ahead, 0, pending);
        else
          many_rows<kKind, false>(in, m, range, partial, panel[0], panel[1], ahead, ahead_lines,
                                  pending);
        if (range.end < k_steps) continue;
        pending.tiles = pending.other_tiles();
        pending.ref[0] = ref[0];
        pending.ref[1] = ref[1];
        pending.m = m;
        pending.rows = here;
        pending.done = 0;
      }
  }
  pending.flush();
}

}  // namespace RT_ISA
}  // namespace rt
