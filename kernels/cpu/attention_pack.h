// Gathering a split's keys and values from the pool into tile layouts, and 16 x 16 transposes.
#pragma once

#include <immintrin.h>

#include "attention_gather.h"

namespace rt {
namespace RT_ISA {

// 2^f on [-0.5, 0.5] as 1 + c1 f + .. + c4 f^4, least relative error 2.9e-6.
constexpr float kExp2C1 = 0.693124247f, kExp2C2 = 0.24024099f, kExp2C3 = 0.055905972f,
                kExp2C4 = 0.00958267229f;

// Lane-wise pair: dword lane i = (bf16(a[i]), bf16(b[i])) of non-negative values, halves rounded up.
// Four plain integer operations; the conversion instructions cost three times as much here.
RT_INLINE __m512i pair_bf16(__m512 a, __m512 b) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i lo = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half), 16);
  const __m512i hi = _mm512_add_epi32(_mm512_castps_si512(b), half);
  // lo | (hi & 0xffff0000)
  return _mm512_ternarylogic_epi32(lo, hi, _mm512_set1_epi32(static_cast<int>(0xffff0000)), 0xf8);
}

// In-place transpose of 16 rows of 16 dwords.
RT_INLINE void transpose_16x16(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 16; i += 8)
    for (int j = 0; j < 4; ++j) {
      t[i + j] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0x88);
      t[i + j + 4] = _mm512_shuffle_i32x4(r[i + j], r[i + j + 4], 0xdd);
    }
  for (int j = 0; j < 8; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    r[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
  }
}

constexpr int kGatherAhead = 12;  // tokens between a prefetch and its use

// 32 values of a head of d from `at` on as bf16, zero past its end.
RT_INLINE __m512i load_chunk(const uint16_t* head, int at, int d) {
  if (d - at >= 32) return _mm512_loadu_si512(head + at);
  return _mm512_maskz_loadu_epi16((1u << (d - at)) - 1, head + at);
}
RT_INLINE __m512i load_chunk(const int8_t* head, int at, int d) {
  const __mmask32 valid = d - at >= 32 ? 0xffffffffu : (1u << (d - at)) - 1;
  const __m256i q = _mm256_maskz_loadu_epi8(valid, head + at);
  const __m512 scale = _mm512_set1_ps(head_scale(head, d));
  const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(q));
  const __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(q, 1));
  return (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_cvtepi32_ps(high), scale),
                                      _mm512_mul_ps(_mm512_cvtepi32_ps(low), scale));
}

// Keys of `heads` kv heads from first_head on: [128 / 16][heads][d / 32][16][32], zero past num_keys.
template <class T>
static void gather_keys_of(const AttentionArgs& args, const int32_t* slots, int num_keys,
                           int padded, int first_head, int heads, uint16_t* out) {
  const int d = args.head_dim, chunks = args.q_stride / 32, head = args.kv_head_stride;
  constexpr int kLine = 64 / sizeof(T);
  const T* pool = static_cast<const T*>(args.k) + first_head * head;
  const T* values = static_cast<const T*>(args.v) + first_head * head;
  for (int j = 0; j < padded; ++j) {
    uint16_t* row = out + (j / 16 * heads * chunks) * 512 + j % 16 * 32;
    // Slots lie anywhere, so the hardware cannot guess the next ones. Values are fetched here too:
    // they are wanted right after the keys.
    if (j + kGatherAhead < num_keys) {
      const int64_t next = slots[j + kGatherAhead] * args.step->kv_slot_stride;
      for (int i = 0; i < heads * head; i += kLine) {
        _mm_prefetch(reinterpret_cast<const char*>(pool + next + i), _MM_HINT_T0);
        _mm_prefetch(reinterpret_cast<const char*>(values + next + i), _MM_HINT_T1);
      }
    }
    const T* key = j < num_keys ? pool + slots[j] * args.step->kv_slot_stride : nullptr;
    for (int h = 0; h < heads; ++h)
      for (int c = 0; c < chunks; ++c, row += 512)
        _mm512_store_si512(row, key == nullptr ? _mm512_setzero_si512()
                                               : load_chunk(key + h * head, c * 32, d));
  }
}

// Values interleaved by key pairs: [heads][d / 16][128 / 32][16 pairs][16][2], zero past num_keys.
template <class T>
static void gather_values_of(const AttentionArgs& args, const int32_t* slots, int num_keys,
                             int padded, int first_head, int heads, uint16_t* out) {
  const int d = args.head_dim, tiles = d / 16, chunks = args.q_stride / 32;
  const int head = args.kv_head_stride;
  constexpr int kTileStep = (kSplitTokens / 32) * 512;
  const T* pool = static_cast<const T*>(args.v) + first_head * head;
  // Word i of the first half takes (even[i], odd[i]) for i < 16, of the second for i >= 16.
  alignas(64) uint16_t low[32], high[32];
  for (int i = 0; i < 16; ++i) {
    low[2 * i] = static_cast<uint16_t>(i);
    low[2 * i + 1] = static_cast<uint16_t>(32 + i);
    high[2 * i] = static_cast<uint16_t>(16 + i);
    high[2 * i + 1] = static_cast<uint16_t>(48 + i);
  }
  const __m512i low_index = _mm512_load_si512(low), high_index = _mm512_load_si512(high);
  const int64_t stride = args.step->kv_slot_stride;
  for (int j = 0; j < padded; j += 2) {
    const T* even = j < num_keys ? pool + slots[j] * stride : nullptr;
    const T* odd = j + 1 < num_keys ? pool + slots[j + 1] * stride : nullptr;
    uint16_t* row = out + j / 32 * 512 + j % 32 / 2 * 32;
    for (int h = 0; h < heads; ++h)
      for (int c = 0; c < chunks; ++c) {
        const __m512i zero = _mm512_setzero_si512();
        const __m512i a = even == nullptr ? zero : load_chunk(even + h * head, c * 32, d);
        const __m512i b = odd == nullptr ? zero : load_chunk(odd + h * head, c * 32, d);
        uint16_t* tile = row + (h * tiles + 2 * c) * kTileStep;
        _mm512_store_si512(tile, _mm512_permutex2var_epi16(a, low_index, b));
        if (d - c * 32 > 16)
          _mm512_store_si512(tile + kTileStep, _mm512_permutex2var_epi16(a, high_index, b));
      }
  }
}

static void gather_keys(const AttentionArgs& args, const int32_t* slots, int num_keys, int padded,
                        int first_head, int heads, uint16_t* out) {
  auto gather = args.kv_dtype == RT_I8 ? gather_keys_of<int8_t> : gather_keys_of<uint16_t>;
  gather(args, slots, num_keys, padded, first_head, heads, out);
}

static void gather_values(const AttentionArgs& args, const int32_t* slots, int num_keys, int padded,
                          int first_head, int heads, uint16_t* out) {
  auto gather = args.kv_dtype == RT_I8 ? gather_values_of<int8_t> : gather_values_of<uint16_t>;
  gather(args, slots, num_keys, padded, first_head, heads, out);
}

}  // namespace RT_ISA
}  // namespace rt
