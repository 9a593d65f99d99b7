// Passes over those logits of a row that a grammar allows, see sampling.cpp.
//
// Bit i % 32 of word i / 32 of `legal` says whether x[i] may be chosen; bits from n on mean nothing.
// Words without a bit cost a look at them alone. Included per instruction set.
#pragma once

#include "sampling.h"
#include "simd.h"

namespace rt {
namespace RT_ISA {

RT_INLINE uint32_t legal_word(const uint32_t* legal, int64_t base, int64_t n) {
  const uint32_t word = legal[base / 32];
  return n - base < 32 ? word & ((1u << (n - base)) - 1) : word;
}

// The largest legal value: NaN if any of them is NaN, -inf if there are none.
static float legal_peak(const float* x, const uint32_t* legal, int64_t n) {
  float best = -__builtin_inff();
  bool has_nan = false;
#if defined(__AVX512F__)
  __m512 low = _mm512_set1_ps(best), high = low;
  __mmask16 fault = 0;
  for (int64_t base = 0; base < n; base += 32) {
    const uint32_t word = legal_word(legal, base, n);
    if (word == 0) continue;
    const __mmask16 m0 = static_cast<__mmask16>(word), m1 = static_cast<__mmask16>(word >> 16);
    const __m512 v0 = _mm512_maskz_loadu_ps(m0, x + base);
    const __m512 v1 = _mm512_maskz_loadu_ps(m1, x + base + 16);
    low = _mm512_mask_max_ps(low, m0, v0, low);
    high = _mm512_mask_max_ps(high, m1, v1, high);
    fault |= _mm512_cmp_ps_mask(v0, v1, _CMP_UNORD_Q);
  }
  best = _mm512_reduce_max_ps(_mm512_max_ps(low, high));
  has_nan = fault != 0;
#else
  for (int64_t base = 0; base < n; base += 32) {
    for (uint32_t word = legal_word(legal, base, n); word != 0; word &= word - 1) {
      const float value = x[base + __builtin_ctz(word)];
      has_nan |= value != value;
      best = value > best ? value : best;
    }
  }
#endif
  return has_nan ? __builtin_nanf("") : best;
}

// The first place of value, n if there is none; among the legal ones unless legal is null.
static int64_t find_value(const float* x, const uint32_t* legal, int64_t n, float value) {
  for (int64_t base = 0; base < n; base += 32) {
    uint32_t word = ~0u;
    if (legal != nullptr) word = legal_word(legal, base, n);
    if (legal == nullptr && n - base < 32) word = (1u << (n - base)) - 1;
    if (word == 0) continue;
#if defined(__AVX512F__)
    const __m512 wanted = _mm512_set1_ps(value);
    const __mmask16 m0 = static_cast<__mmask16>(word), m1 = static_cast<__mmask16>(word >> 16);
    const __m512 v0 = _mm512_maskz_loadu_ps(m0, x + base);
    const __m512 v1 = _mm512_maskz_loadu_ps(m1, x + base + 16);
    const uint32_t found = _mm512_mask_cmp_ps_mask(m0, v0, wanted, _CMP_EQ_OQ) |
                           static_cast<uint32_t>(
                               _mm512_mask_cmp_ps_mask(m1, v1, wanted, _CMP_EQ_OQ)) << 16;
    if (found != 0) return base + __builtin_ctz(found);
#else
    for (; word != 0; word &= word - 1) {
      const int64_t i = base + __builtin_ctz(word);
      if (x[i] == value) return i;
    }
#endif
  }
  return n;
}

// Writes the legal values and their places, in order, and returns how many there are. values and
// places have room for n + kGatherSlack elements.
static int64_t gather_legal(const float* x, const uint32_t* legal, int64_t n, float* values,
                            int32_t* places) {
  int64_t count = 0;
#if defined(__AVX512F__)
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (int64_t base = 0; base < n; base += 32) {
    const uint32_t word = legal_word(legal, base, n);
    if (word == 0) continue;
    for (int half = 0; half < 32; half += 16) {
      const __mmask16 mask = static_cast<__mmask16>(word >> half);
      const __m512 v = _mm512_maskz_loadu_ps(mask, x + base + half);
      const __m512i ids =
          _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int32_t>(base + half)));
      // Packed in a register and stored whole: packing stores are slow on some processors.
      _mm512_storeu_ps(values + count, _mm512_maskz_compress_ps(mask, v));
      _mm512_storeu_si512(places + count, _mm512_maskz_compress_epi32(mask, ids));
      count += __builtin_popcount(mask);
    }
  }
#else
  for (int64_t base = 0; base < n; base += 32) {
    for (uint32_t word = legal_word(legal, base, n); word != 0; word &= word - 1) {
      const int64_t i = base + __builtin_ctz(word);
      values[count] = x[i];
      places[count++] = static_cast<int32_t>(i);
    }
  }
#endif
  return count;
}

}  // namespace RT_ISA
}  // namespace rt
