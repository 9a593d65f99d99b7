// Linear units on GGUF blocks of 32 (Q4_0, Q4_1, Q8_0), with activations quantised per block of 32.
//
// Included per instruction set. The products of a block are summed in integers, which is exact in
// any order; block results are added in f32 in the order of K. So every level and every way of
// grouping rows agrees in the integer part, and one accumulator per output fixes the rest.
#pragma once

#include "epilogue.h"
#include "quant_layout.h"

namespace rt {
namespace RT_ISA {

RT_INLINE Vec load_f16(const uint16_t* p) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps(load_as<__m256i>(p));
#elif defined(__F16C__)
  return (Vec)_mm256_cvtph_ps(load_as<__m128i>(p));
#else
  Vec v;
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t h = p[i], exponent = h >> 10 & 31, mantissa = h & 1023;
    const uint32_t sign = (h & 0x8000) << 16;
    uint32_t u = sign | (exponent + 112) << 23 | mantissa << 13;
    if (exponent == 31) u = sign | 0x7f800000 | mantissa << 13;
    float f;
    memcpy(&f, &u, 4);
    if (exponent == 0) {
      f = static_cast<float>(mantissa) * 5.9604645e-8f;  // 2^-24
      if (sign != 0) f = -f;
    }
    v[i] = f;
  }
  return v;
#endif
}

// Sixteen columns x 32 of K of one block as unsigned bytes, in registers where there are enough.
template <WeightKind kKind>
struct BlockBytes {
#if defined(__AVX512VNNI__)
  __m512i quad[8];
  static inline __attribute__((always_inline)) BlockBytes load(const uint8_t* block) {
    BlockBytes b;
    if (kKind == WeightKind::kQ8_0) {
      for (int i = 0; i < 8; ++i) b.quad[i] = _mm512_loadu_si512(block + i * 64);
      return b;
    }
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
      const __m512i both = _mm512_loadu_si512(block + i * 64);
      b.quad[2 * i] = _mm512_and_si512(both, low);
      b.quad[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    return b;
  }
  static inline __attribute__((always_inline)) void dot(const BlockBytes& b, const int8_t* a, int32_t zero, int32_t* sums) {
    __m512i even = _mm512_set1_epi32(zero), odd = _mm512_setzero_si512();
    for (int i = 0; i < 8; i += 2) {
      even = _mm512_dpbusd_epi32(even, b.quad[i], _mm512_set1_epi32(load_as<int32_t>(a + 4 * i)));
      odd = _mm512_dpbusd_epi32(odd, b.quad[i + 1],
                                _mm512_set1_epi32(load_as<int32_t>(a + 4 * i + 4)));
    }
    store_as(sums, _mm512_add_epi32(even, odd));
  }
#else
  uint8_t byte[512];
  static inline __attribute__((always_inline)) BlockBytes load(const uint8_t* block) {
    BlockBytes b;
    if (kKind == WeightKind::kQ8_0) {
      memcpy(b.byte, block, 512);
      return b;
    }
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 64; ++j) {
        b.byte[2 * i * 64 + j] = block[i * 64 + j] & 15;
        b.byte[(2 * i + 1) * 64 + j] = block[i * 64 + j] >> 4;
      }
    return b;
  }
  static inline __attribute__((always_inline)) void dot(const BlockBytes& b, const int8_t* a, int32_t zero, int32_t* sums) {
    for (int c = 0; c < kPanel; ++c) sums[c] = zero;
    for (int q = 0; q < 8; ++q)
      for (int c = 0; c < kPanel; ++c)
        for (int j = 0; j < 4; ++j) sums[c] += b.byte[q * 64 + c * 4 + j] * a[q * 4 + j];
  }
#endif
};

template <WeightKind kKind, int MR>
RT_INLINE void panel_quant(const Activation& in, int m0, const uint8_t* panel, float* tile) {
  constexpr bool kHasMin = kKind == WeightKind::kQ4_1;
  constexpr int kZero = kKind == WeightKind::kQ4_0 ? 8 : kKind == WeightKind::kQ8_0 ? 128 : 0;
  constexpr size_t kBytes = kKind == WeightKind::kQ8_0 ? 512 : 256;
  const int blocks = in.k_padded / kKBlock;
  const int64_t a_step = static_cast<int64_t>(in.tile_rows) * kKBlock;
  const int8_t* a[MR];
  for (int r = 0; r < MR; ++r) a[r] = in.q8_at(m0 + r, 0);
  const float* a_scale = in.q8_scale + static_cast<int64_t>(m0) * blocks;
  const int32_t* a_sum = in.q8_sum + static_cast<int64_t>(m0) * blocks;
  Vec acc[MR][kPanelVecs] = {};
  for (int k = 0; k < blocks; ++k, panel += quant_block_bytes(kKind)) {
#if defined(__AVX512F__)
    if (MR == 1)  // one row streams the weights from memory
      for (size_t line = 0; line < quant_block_bytes(kKind); line += 64)
        _mm_prefetch(reinterpret_cast<const char*>(panel + 2048 + line), _MM_HINT_T0);
#endif
    const BlockBytes<kKind> bytes = BlockBytes<kKind>::load(panel);
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(panel + kBytes);
    for (int r = 0; r < MR; ++r) {
      const int64_t at = static_cast<int64_t>(r) * blocks + k;
      int32_t sums[kPanel];
      BlockBytes<kKind>::dot(bytes, a[r], -kZero * a_sum[at], sums);
      for (int v = 0; v < kPanelVecs; ++v) {
        const Vec exact = __builtin_convertvector(load_as<VecI>(sums + v * kLanes), Vec);
        Vec t = load_f16(scales + v * kLanes) * exact;
        if (kHasMin) t = load_f16(scales + kPanel + v * kLanes) * static_cast<float>(a_sum[at]) + t;
        acc[r][v] = a_scale[at] * t + acc[r][v];
      }
      a[r] += a_step;
    }
  }
  for (int r = 0; r < MR; ++r)
    for (int v = 0; v < kPanelVecs; ++v) store(tile + r * kPanel + v * kLanes, acc[r][v]);
}

template <WeightKind kKind>
static void quant_tile(const Activation& in, const uint8_t* panel, int m0, int m1, float* tile) {
  int m = m0;
  for (; m + 4 <= m1; m += 4) panel_quant<kKind, 4>(in, m, panel, tile + (m - m0) * kPanel);
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
  for (int c = 0; c < kPanel; ++c) sums[c] = 0;
  const int8_t* w = reinterpret_cast<const int8_t*>(panel);
  for (int k = 0; k < steps; ++k, a += a_step, w += 1024)
    for (int q = 0; q < 16; ++q)
      for (int c = 0; c < kPanel; ++c)
        for (int j = 0; j < 4; ++j) sums[c] += w[q * 64 + c * 4 + j] * a[q * 4 + j];
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

// Rows [m0, m1), at most 16, of one panel of any quantised kind.
static void quant_panel_tile(const LinearArgs& args, const PackedWeight& w, int panel, int m0,
                             int m1, float* tile) {
  const Activation& in = *args.input;
  switch (w.kind) {
    case WeightKind::kQ4_0:
      return quant_tile<WeightKind::kQ4_0>(in, w.panel(panel), m0, m1, tile);
    case WeightKind::kQ4_1:
      return quant_tile<WeightKind::kQ4_1>(in, w.panel(panel), m0, m1, tile);
    case WeightKind::kQ8_0:
      return quant_tile<WeightKind::kQ8_0>(in, w.panel(panel), m0, m1, tile);
    default: return w8a8_tile(w, panel, in, m0, m1, tile);
  }
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
