// Linear units on GGUF blocks, with activations quantised per block of 32.
//
// Included per instruction set. The products of a block are summed in integers, which is exact in
// any order; block results are added in f32 in the order of K, every multiply-add written out. So
// all ways of grouping rows, here or in tiles (linear_quant_amx.h), give the same bits:
//   sum += a_scale * (scale * dot + min * a_sum)        per 32 of K
//   sum += a_scale * (scale1 * dot1 + scale0 * dot0)    kQ6_K, whose scales hold for 16
// where scale = d * inner scale is exact: 11 bits times at most 8.
#pragma once

#include "epilogue.h"
#include "quant_dots.h"
#include "quant_layout.h"

namespace rt {
namespace RT_ISA {

constexpr int kQuantRows = kLanes == 16 ? 4 : 2;

constexpr int halves_of(WeightKind kind) { return quant_traits(kind).group == 16 ? 2 : 1; }

// The f32 scales and minima of one block of 16 columns.
template <WeightKind kKind>
struct BlockScales {
  static constexpr int kSubs = quant_traits(kKind).sub_blocks;
  alignas(64) float scale[kSubs][halves_of(kKind)][kPanel];
  alignas(64) float min[quant_traits(kKind).has_min ? kSubs : 1][kPanel];

  RT_METHOD void load(const uint8_t* scales) {
    constexpr QuantTraits t = quant_traits(kKind);
    for (int v = 0; v < kPanelVecs; ++v) {
      const int at = v * kLanes;
      const Vec d = load_f16(reinterpret_cast<const uint16_t*>(scales) + at);
      Vec m = {};
      if (t.has_min) m = load_f16(reinterpret_cast<const uint16_t*>(scales) + kPanel + at);
      if constexpr (kSubs == 1) {
        store(&scale[0][0][at], d);
        if constexpr (t.has_min) store(&min[0][at], m);
      } else if constexpr (t.group == 16) {
        typedef int8_t Bytes __attribute__((vector_size(kLanes)));
        for (int g = 0; g < 2 * kSubs; ++g)
          store(&scale[0][0][0] + g * kPanel + at,
                d * __builtin_convertvector(load_as<Bytes>(scales + 32 + g * 16 + at), Vec));
      } else {
        VecU words[3];
        for (int i = 0; i < 3; ++i)
          words[i] = load_as<VecU>(scales + 64 + (i * kPanel + at) * 4);
#pragma GCC unroll 8
        for (int s = 0; s < 8; ++s) {
          const InnerBits one = inner_scale_bits(s), other = inner_min_bits(s);
          const VecU inner = words[one.word] >> one.shift & 63u;
          const VecU least = s < 7 ? words[other.word] >> other.shift & 63u
                                   : words[0] >> 30 | words[1] >> 30 << 2 | words[2] >> 30 << 4;
          store(&scale[s][0][at], d * __builtin_convertvector((VecI)inner, Vec));
          store(&min[s][at], m * __builtin_convertvector((VecI)least, Vec));
        }
      }
    }
  }
};

template <WeightKind kKind, int MR>
RT_INLINE void panel_quant(const Activation& in, int m0, const uint8_t* panel, float* tile) {
  constexpr QuantTraits t = quant_traits(kKind);
  constexpr int kHalves = halves_of(kKind);
  constexpr float kZero = static_cast<float>(stored_zero(kKind));
  const int blocks = in.k_padded / quant_block_values(kKind);
  const uint8_t* ahead = panel + 2048;
  const int64_t step = in.tile_rows;
  int64_t at[MR];
  for (int r = 0; r < MR; ++r) at[r] = in.q8_block(m0 + r, 0);
  Vec acc[MR][kPanelVecs] = {};
  for (int k = 0; k < blocks; ++k, panel += quant_block_bytes(kKind)) {
    BlockScales<kKind> scales;
    scales.load(panel + quant_scale_offset(kKind));
    for (int s = 0; s < t.sub_blocks; ++s) {
      if (MR == 1) {  // one row streams the weights from memory
        constexpr size_t kShare = quant_block_bytes(kKind) / static_cast<size_t>(t.sub_blocks);
        for (size_t line = 0; line < kShare; line += 64) __builtin_prefetch(ahead + line);
        ahead += kShare;
      }
      const BlockBytes<kKind> bytes = BlockBytes<kKind>::load(panel + s * quant_sub_bytes(kKind));
      for (int r = 0; r < MR; ++r) {
        VecI sums[kHalves][kPanelVecs];
        bytes.dot(in.q8 + at[r] * kKBlock, sums);
        const Vec a_scale = splat(in.q8_scale[at[r]]), a_sum = splat(in.q8_sum[at[r]]);
        for (int v = 0; v < kPanelVecs; ++v) {
          Vec total = {};
          for (int h = 0; h < kHalves; ++h) {
            Vec exact = __builtin_convertvector(sums[h][v], Vec);
            if (kZero != 0.0f)
              exact = fmadd(splat(-kZero),
                            kHalves == 1 ? a_sum : splat(in.q8_half_sum[2 * at[r] + h]), exact);
            const Vec scale = load(&scales.scale[s][h][v * kLanes]);
            total = h == 0 ? scale * exact : fmadd(scale, exact, total);
          }
          if constexpr (t.has_min) total = fmadd(load(&scales.min[s][v * kLanes]), a_sum, total);
          acc[r][v] = fmadd(a_scale, total, acc[r][v]);
        }
        at[r] += step;
      }
    }
  }
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < kPanelVecs; ++v) store(tile + r * kPanel + v * kLanes, acc[r][v]);
}

template <WeightKind kKind>
static void quant_tile(const Activation& in, const uint8_t* panel, int m0, int m1, float* tile) {
  int m = m0;
  for (; m + kQuantRows <= m1; m += kQuantRows)
    panel_quant<kKind, kQuantRows>(in, m, panel, tile + (m - m0) * kPanel);
  for (; m < m1; ++m) panel_quant<kKind, 1>(in, m, panel, tile + (m - m0) * kPanel);
}

// W8A8: one scale per weight row and per activation row, all of K summed in integers.
RT_INLINE void panel_w8a8(const Activation& in, int m, const uint8_t* panel, int32_t* sums) {
  const int steps = in.k_padded_row_q8() / 64;
  const int64_t a_step = static_cast<int64_t>(in.tile_rows) * 64;
  const int8_t* a = in.row_q8_at(m, 0);
#if defined(__AVX512VNNI__)
  // The instruction multiplies unsigned by signed: activations are shifted by 128, and 128 times the
  // weights' sum is taken off again.
  const __m512i shift = _mm512_set1_epi8(static_cast<char>(0x80));
  __m512i sum = _mm512_setzero_si512(), extra = sum;
  for (int k = 0; k < steps; ++k, a += a_step, panel += 1024)
    for (int q = 0; q < 16; ++q) {
      const __m512i w = _mm512_loadu_si512(panel + q * 64);
      const __m512i x = _mm512_xor_si512(_mm512_set1_epi32(load_as<int32_t>(a + 4 * q)), shift);
      sum = _mm512_dpbusd_epi32(sum, x, w);
      extra = _mm512_dpbusd_epi32(extra, shift, w);
    }
  store_as(sums, _mm512_sub_epi32(sum, extra));
#else
  VecI total[kPanelVecs] = {};
  for (int k = 0; k < steps; ++k, a += a_step, panel += 1024)
    for (int q = 0; q < 16; ++q)
      for (int v = 0; v < kPanelVecs; ++v)
        total[v] = dot_signed(total[v], load_as<VecI>(panel + q * 64 + v * kLanes * 4), a + 4 * q);
  for (int v = 0; v < kPanelVecs; ++v) store_as(sums + v * kLanes, total[v]);
#endif
}

// Integer sums [rows][16] to values, in place.
RT_INLINE void scale_w8a8(const PackedWeight& w, int panel, const Activation& in, int m0, int rows,
                          float* tile) {
  const float* scales = w.scales + panel * kPanel;
  for (int r = 0; r < rows; ++r, tile += kPanel)
    for (int v = 0; v < kPanel; v += kLanes) {
      const Vec exact = __builtin_convertvector(load_as<VecI>(tile + v), Vec);
      store(tile + v, exact * load(scales + v) * in.row_scale[m0 + r]);
    }
}

static void w8a8_tile(const PackedWeight& w, int panel, const Activation& in, int m0, int m1,
                      float* tile) {
  for (int m = m0; m < m1; ++m) {
    int32_t sums[kPanel];
    panel_w8a8(in, m, w.panel(panel), sums);
    memcpy(tile + (m - m0) * kPanel, sums, sizeof sums);
  }
  scale_w8a8(w, panel, in, m0, m1 - m0, tile);
}

// Calls body with the kind as a constant: std::integral_constant<WeightKind, kind>.
template <class Body>
RT_INLINE void with_quant_kind(WeightKind kind, Body body) {
  switch (kind) {
#define RT_CASE(name) \
  case WeightKind::name: return body(std::integral_constant<WeightKind, WeightKind::name>());
    RT_CASE(kQ4_0)
    RT_CASE(kQ4_1)
    RT_CASE(kQ5_0)
    RT_CASE(kQ5_1)
    RT_CASE(kQ8_0)
    RT_CASE(kQ4_K)
    RT_CASE(kQ5_K)
    RT_CASE(kQ6_K)
#undef RT_CASE
    default: return;
  }
}

// Rows [m0, m1), at most 16, of one panel of any quantised kind.
static void quant_panel_tile(const LinearArgs& args, const PackedWeight& w, int panel, int m0,
                             int m1, float* tile) {
  const Activation& in = *args.input;
  if (w.kind == WeightKind::kW8A8) return w8a8_tile(w, panel, in, m0, m1, tile);
  with_quant_kind(w.kind, [&](auto kind) {
    quant_tile<decltype(kind)::value>(in, w.panel(panel), m0, m1, tile);
  });
}

static void linear_unit_quant(const LinearArgs& args, const LinearUnit& unit,
                              ThreadScratch& scratch) {
  for (int p = unit.first_panel; p < unit.first_panel + unit.num_panels; ++p)
    for (int m = unit.m0; m < unit.m1; m += kTileRows) {
      const int end = m + kTileRows < unit.m1 ? m + kTileRows : unit.m1;
      quant_panel_tile(args, *args.weight[unit.part], p, m, end, scratch.tiles[0]);
      if (args.is_gated()) {
        quant_panel_tile(args, *args.weight[1], p, m, end, scratch.tiles[1]);
        finish_gated(args, p, m, end - m, scratch.tiles[0], scratch.tiles[1]);
      } else {
        finish_tile(args, scratch, unit.part, p, m, end - m, scratch.tiles[0]);
      }
    }
}

}  // namespace RT_ISA
}  // namespace rt
