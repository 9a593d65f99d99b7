// Exact integer products of one block: 16 columns x 32 of K of weights with 32 activations.
//
// Included per instruction set. VNNI multiplies four unsigned by four signed bytes in a step; below
// it two steps through 16 bits do, and plain loops where there is neither.
#pragma once

#include <type_traits>

#include "quant_layout.h"
#include "simd.h"

#define RT_METHOD inline __attribute__((always_inline))

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

// kLanes columns: sum + products of their four unsigned weights, of at most 6 bits, with four a.
// Weights of 8 bits would overflow the 16-bit step below VNNI, dot_signed takes those.
RT_INLINE VecI dot_unsigned(VecI sum, VecI w, const int8_t* a) {
#if defined(__AVX512VNNI__)
  const __m512i x = _mm512_set1_epi32(load_as<int32_t>(a));
  return (VecI)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, x);
#elif defined(__AVX512BW__)
  const __m512i x = _mm512_set1_epi32(load_as<int32_t>(a));
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)w, x);
  return sum + (VecI)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
  const __m256i x = _mm256_set1_epi32(load_as<int32_t>(a));
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, x);
  return sum + (VecI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  const VecU u = (VecU)w;
  for (int j = 0; j < 4; ++j) sum += (VecI)(u >> (8 * j) & 255u) * static_cast<int32_t>(a[j]);
  return sum;
#endif
}

// The same for signed weights of 8 bits; a is never -128.
RT_INLINE VecI dot_signed(VecI sum, VecI w, const int8_t* a) {
#if defined(__AVX512BW__)
  const __m512i weights = (__m512i)w, x = _mm512_set1_epi32(load_as<int32_t>(a));
  const __m512i moved =
      _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(weights), _mm512_setzero_si512(), x);
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(weights), moved);
  return sum + (VecI)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
  const __m256i weights = (__m256i)w, x = _mm256_set1_epi32(load_as<int32_t>(a));
  const __m256i pairs =
      _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
  return sum + (VecI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  for (int j = 0; j < 4; ++j) sum += (w << (24 - 8 * j) >> 24) * static_cast<int32_t>(a[j]);
  return sum;
#endif
}

#if defined(__AVX512VNNI__)
constexpr bool kUnsignedBytes = true;
#else
constexpr bool kUnsignedBytes = false;
#endif

// What is still to be taken off the weights that BlockBytes multiplies.
constexpr int stored_zero(WeightKind kind) {
  return kind == WeightKind::kQ8_0 && !kUnsignedBytes ? 0 : quant_traits(kind).zero;
}

// The values of a block as bytes in [8 quads][16 columns][4], in registers where they fit.
template <WeightKind kKind>
struct BlockBytes {
  static constexpr int kBits = quant_traits(kKind).bits;
#if defined(__AVX512F__)
  __m512i quad[8];

  static RT_METHOD BlockBytes load(const uint8_t* sub) {
    BlockBytes b;
    if (kBits == 8) {
      for (int i = 0; i < 8; ++i) {
        b.quad[i] = load_as<__m512i>(sub + i * 64);
        if (!kUnsignedBytes)
          b.quad[i] = _mm512_xor_si512(b.quad[i], _mm512_set1_epi8(static_cast<char>(0x80)));
      }
      return b;
    }
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < 4; ++i) {
      const __m512i both = load_as<__m512i>(sub + i * 64);
      b.quad[2 * i] = _mm512_and_si512(both, low);
      b.quad[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    if (kBits == 4) return b;
#pragma GCC unroll 8
    for (int q = 0; q < 8; ++q) {
      const __m512i high = load_as<__m512i>(sub + 256 + (kBits == 5 ? 0 : q / 4 * 64));
      // Bit q, or bits 2 * (q % 4), to bit 4.
      const int up = 4 - (kBits == 5 ? q : q % 4 * 2);
      const __m512i moved = up >= 0 ? _mm512_slli_epi16(high, static_cast<unsigned>(up < 0 ? 0 : up))
                                    : _mm512_srli_epi16(high, static_cast<unsigned>(up < 0 ? -up : 0));
      // quad | (moved & mask)
      b.quad[q] = _mm512_ternarylogic_epi32(b.quad[q], moved,
                                            _mm512_set1_epi8(kBits == 5 ? 0x10 : 0x30), 0xf8);
    }
    return b;
  }
  // sums: one for all of K, or one for each half.
  template <int kHalves>
  RT_METHOD void dot(const int8_t* a, VecI (&sums)[kHalves][1]) const {
    VecI part[2] = {};
    for (int q = 0; q < 8; ++q) {
      const int to = kHalves == 2 ? q / 4 : q % 2;
      const VecI w = (VecI)quad[q];
      part[to] = kBits == 8 && !kUnsignedBytes ? dot_signed(part[to], w, a + 4 * q)
                                               : dot_unsigned(part[to], w, a + 4 * q);
    }
    if (kHalves == 2) {
      sums[0][0] = part[0];
      sums[kHalves - 1][0] = part[1];
    } else {
      sums[0][0] = part[0] + part[1];
    }
  }
#else
  uint8_t byte[512];

  static RT_METHOD BlockBytes load(const uint8_t* sub) {
    BlockBytes b;
    if (kBits == 8) {
      for (int i = 0; i < 512; ++i) b.byte[i] = sub[i] ^ 0x80;
      return b;
    }
    for (int q = 0; q < 8; ++q)
      for (int i = 0; i < 64; ++i) {
        const int low = q % 2 == 0 ? sub[q / 2 * 64 + i] & 15 : sub[q / 2 * 64 + i] >> 4;
        int high = 0;
        if (kBits == 5) high = sub[256 + i] >> q & 1;
        if (kBits == 6) high = sub[256 + q / 4 * 64 + i] >> (2 * (q % 4)) & 3;
        b.byte[q * 64 + i] = static_cast<uint8_t>(low | high << 4);
      }
    return b;
  }
  template <int kHalves, int kVecs>
  RT_METHOD void dot(const int8_t* a, VecI (&sums)[kHalves][kVecs]) const {
    for (int h = 0; h < kHalves; ++h)
      for (int v = 0; v < kVecs; ++v) sums[h][v] = VecI{};
    for (int q = 0; q < 8; ++q)
      for (int v = 0; v < kVecs; ++v) {
        VecI& sum = sums[kHalves == 2 ? q / 4 : 0][v];
        const VecI w = load_as<VecI>(byte + q * 64 + v * kLanes * 4);
        sum = kBits == 8 ? dot_signed(sum, w, a + 4 * q) : dot_unsigned(sum, w, a + 4 * q);
      }
  }
#endif
};

}  // namespace RT_ISA
}  // namespace rt
