// bf16, f32 and weight-only 8-bit linear units for every instruction set without tiles.
//
// Included per instruction set. One accumulator per output element runs over K in order, so the
// number of rows handled together does not matter to the result.
#pragma once

#include "epilogue.h"

namespace rt {
namespace RT_ISA {

// Rows that share one pass over a panel: enough accumulators to hide the multiply-add latency.
constexpr int kRowGroup = kLanes >= 8 ? 4 : 2;

#if defined(__AVX512BF16__)
template <int MR>
RT_INLINE void panel_bf16(const LinearArgs& args, int m0, const uint8_t* panel, float* tile) {
  const Activation& in = *args.input;
  __m512 acc[MR];
  for (int r = 0; r < MR; ++r) acc[r] = _mm512_setzero_ps();
  for (int k0 = 0; k0 < in.k_padded; k0 += kKBlock, panel += 1024) {
    const uint16_t* a[MR];
    for (int r = 0; r < MR; ++r) a[r] = in.bf16_at(m0 + r, k0);
    for (int pair = 0; pair < 16; ++pair) {
      const __m512bh b = (__m512bh)_mm512_loadu_si512(panel + pair * 64);
      for (int r = 0; r < MR; ++r) {
        const __m512i x = _mm512_set1_epi32(load_as<int32_t>(a[r] + 2 * pair));
        acc[r] = _mm512_dpbf16_ps(acc[r], (__m512bh)x, b);
      }
    }
  }
  for (int r = 0; r < MR; ++r) _mm512_storeu_ps(tile + r * kPanel, acc[r]);
}
#else
template <int MR>
RT_INLINE void panel_bf16(const LinearArgs& args, int m0, const uint8_t* panel, float* tile) {
  const Activation& in = *args.input;
  Vec acc[MR][kPanelVecs] = {};
  for (int k0 = 0; k0 < in.k_padded; k0 += kKBlock, panel += 1024) {
    const uint16_t* a[MR];
    for (int r = 0; r < MR; ++r) a[r] = in.bf16_at(m0 + r, k0);
    for (int pair = 0; pair < 16; ++pair) {
      for (int v = 0; v < kPanelVecs; ++v) {
        const VecU b = load_as<VecU>(panel + pair * 64 + v * kLanes * 4);
        const Vec even = (Vec)(b << 16), odd = (Vec)(b & 0xffff0000u);
        for (int r = 0; r < MR; ++r) {
          acc[r][v] = bf16_to_f32(a[r][2 * pair]) * even + acc[r][v];
          acc[r][v] = bf16_to_f32(a[r][2 * pair + 1]) * odd + acc[r][v];
        }
      }
    }
  }
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < kPanelVecs; ++v) store(tile + r * kPanel + v * kLanes, acc[r][v]);
}
#endif

template <int MR>
RT_INLINE void panel_f32(const LinearArgs& args, int m0, const uint8_t* panel, float* tile) {
  const Activation& in = *args.input;
  const float* w = reinterpret_cast<const float*>(panel);
  const float* a = in.f32 + static_cast<int64_t>(m0) * in.k_padded;
  Vec acc[MR][kPanelVecs] = {};
  for (int k = 0; k < in.k; ++k, w += kPanel)
    for (int v = 0; v < kPanelVecs; ++v) {
      const Vec b = load(w + v * kLanes);
      for (int r = 0; r < MR; ++r)
        acc[r][v] = a[static_cast<int64_t>(r) * in.k_padded + k] * b + acc[r][v];
    }
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < kPanelVecs; ++v) store(tile + r * kPanel + v * kLanes, acc[r][v]);
}

// Eight bits times bf16: weights widened in registers, their scales applied to the sums.
template <int MR>
RT_INLINE void panel_w8a16(const LinearArgs& args, const PackedWeight& w, int panel, int m0,
                           float* tile) {
  constexpr int kExchanged[4] = {0, 2, 1, 3};  // see PackedWeight
  const Activation& in = *args.input;
  const uint8_t* quad = w.panel(panel);
  Vec acc[MR][kPanelVecs] = {};
  for (int k0 = 0; k0 < in.k_padded; k0 += 4, quad += 64) {
    const uint16_t* a[MR];
    for (int r = 0; r < MR; ++r) a[r] = in.bf16_at(m0 + r, k0);
    for (int v = 0; v < kPanelVecs; ++v) {
      const VecI four = load_as<VecI>(quad + v * kLanes * 4);
      for (int j = 0; j < 4; ++j) {
        const Vec b = __builtin_convertvector(four << (24 - 8 * kExchanged[j]) >> 24, Vec);
        for (int r = 0; r < MR; ++r) acc[r][v] = bf16_to_f32(a[r][j]) * b + acc[r][v];
      }
    }
  }
  const float* scales = w.scales + panel * kPanel;
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < kPanelVecs; ++v)
      store(tile + r * kPanel + v * kLanes, acc[r][v] * load(scales + v * kLanes));
}

template <int MR>
RT_INLINE void panel_rows(const LinearArgs& args, const PackedWeight& w, int panel, int m0,
                          float* tile) {
  if (w.kind == WeightKind::kF32)
    panel_f32<MR>(args, m0, w.panel(panel), tile);
  else if (w.kind == WeightKind::kW8A16)
    panel_w8a16<MR>(args, w, panel, m0, tile);
  else
    panel_bf16<MR>(args, m0, w.panel(panel), tile);
}

// Rows [m0, m1), at most 16, of one panel.
static void panel_tile(const LinearArgs& args, const PackedWeight& w, int panel, int m0, int m1,
                       float* tile) {
  int m = m0;
  for (; m + kRowGroup <= m1; m += kRowGroup)
    panel_rows<kRowGroup>(args, w, panel, m, tile + (m - m0) * kPanel);
  for (; m < m1; ++m) panel_rows<1>(args, w, panel, m, tile + (m - m0) * kPanel);
}

static void linear_unit_float(const LinearArgs& args, const LinearUnit& unit,
                              ThreadScratch& scratch) {
  for (int p = unit.first_panel; p < unit.first_panel + unit.num_panels; ++p)
    for (int m = unit.m0; m < unit.m1; m += kTileRows) {
      const int end = m + kTileRows < unit.m1 ? m + kTileRows : unit.m1;
      panel_tile(args, *args.weight[unit.part], p, m, end, scratch.tiles[0]);
      if (args.is_gated()) {
        panel_tile(args, *args.weight[1], p, m, end, scratch.tiles[1]);
        finish_gated(args, p, m, end - m, scratch.tiles[0], scratch.tiles[1]);
      } else {
        finish_tile(args, scratch, unit.part, p, m, end - m, scratch.tiles[0]);
      }
    }
}

}  // namespace RT_ISA
}  // namespace rt
