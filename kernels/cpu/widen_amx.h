// Small integers as bf16 for tiles: tables for values of up to 6 bits, conversion for 8.
//
// A vector of bytes [16 columns][4 of K] becomes two of bf16 [16 columns][2 of K]: bytes 0 and 2,
// then 1 and 3, which costs no shuffle. The other operand's K is in the same order.
#pragma once

#include <immintrin.h>

#include "quant_dots.h"

namespace rt {
namespace RT_ISA {

RT_INLINE void store_tile_row(uint8_t* tile, int row, __m512i v) {
  _mm512_store_si512(tile + row * 64, v);
}

// Signed bytes: bf16 holds all of them exactly, so cutting off the low half of an f32 does.
RT_INLINE void widen_bytes(__m512i v, uint8_t* tile, int row) {
  const auto value = [](__m512i shifted) {
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(shifted, 24)));
  };
  const __m512i b0 = value(_mm512_slli_epi32(v, 24)), b1 = value(_mm512_slli_epi32(v, 16));
  const __m512i b2 = value(_mm512_slli_epi32(v, 8)), b3 = value(v);
  constexpr __mmask32 kHigh = 0xaaaaaaaa;
  store_tile_row(tile, row, _mm512_mask_blend_epi16(kHigh, _mm512_srli_epi32(b0, 16), b2));
  store_tile_row(tile, row + 1, _mm512_mask_blend_epi16(kHigh, _mm512_srli_epi32(b1, 16), b3));
}

// Quads [q0, q1) of 64 of K of a kW8A16 panel into the tiles at `wide`.
RT_INLINE void widen_w8a16(const uint8_t* panel, int q0, int q1, uint8_t* wide) {
  for (int q = q0; q < q1; ++q) widen_bytes(load_as<__m512i>(panel + q * 64), wide, 2 * q);
}

// A whole panel into one of the thread's two; returns it.
static const uint8_t* widen_panel_w8a16(const Activation& in, const uint8_t* panel, int which,
                                        ThreadScratch& scratch) {
  uint8_t* wide = scratch.panels + static_cast<size_t>(which) * widened_panel_bytes(in.k_padded);
  for (int k = 0; k < in.k_padded; k += 64, panel += 1024) {
    for (int line = 0; line < 16; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(panel + 2048 + line * 64), _MM_HINT_T0);
    widen_w8a16(panel, 0, 16, wide + k * 32);
  }
  return wide;
}

// bf16 of first, first + 1, ... first + 31.
RT_INLINE __m512i bf16_table(int first) {
  const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto half = [&](int start) {
    return (__m256i)_mm512_cvtneps_pbh(
        _mm512_cvtepi32_ps(_mm512_add_epi32(count, _mm512_set1_epi32(start))));
  };
  return _mm512_inserti64x4(_mm512_castsi256_si512(half(first)), half(first + 16), 1);
}

// One sub-block of 16 columns x 32 of K into a tile, less its zero.
template <WeightKind kKind>
RT_INLINE void widen_sub_block(const uint8_t* sub, uint8_t* tile) {
  constexpr QuantTraits t = quant_traits(kKind);
  if constexpr (t.bits == 4) {
    // The lookup heeds 5 bits of each 16: with both halves alike four, as shifts bring them down.
    const __m512i sixteen = bf16_table(-t.zero);
    const __m512i table = _mm512_shuffle_i64x2(sixteen, sixteen, 0x44);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i v = load_as<__m512i>(sub + i * 64);
      store_tile_row(tile, 4 * i, _mm512_permutexvar_epi16(v, table));
      store_tile_row(tile, 4 * i + 1, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table));
      store_tile_row(tile, 4 * i + 2, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table));
      store_tile_row(tile, 4 * i + 3, _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), table));
    }
    return;
  }
  const BlockBytes<kKind> bytes = BlockBytes<kKind>::load(sub);
  const __m512i low = bf16_table(-t.zero), high = bf16_table(32 - t.zero);
#pragma GCC unroll 8
  for (int q = 0; q < 8; ++q) {
    const __m512i v = bytes.quad[q], odd = _mm512_srli_epi16(v, 8);
    if constexpr (t.bits == 8) {
      widen_bytes(_mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(0x80))), tile, 2 * q);
    } else if constexpr (t.bits == 6) {
      store_tile_row(tile, 2 * q, _mm512_permutex2var_epi16(low, v, high));
      store_tile_row(tile, 2 * q + 1, _mm512_permutex2var_epi16(low, odd, high));
    } else {
      store_tile_row(tile, 2 * q, _mm512_permutexvar_epi16(v, low));
      store_tile_row(tile, 2 * q + 1, _mm512_permutexvar_epi16(odd, low));
    }
  }
}

}  // namespace RT_ISA
}  // namespace rt
