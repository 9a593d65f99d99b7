// Width-agnostic float vectors from compiler vector extensions.
//
// Included only by files compiled for one instruction set, inside namespace rt::RT_ISA, so that no
// function compiled for a wider machine can be picked by the linker for a narrower one.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#define RT_LANES 16
#elif defined(__AVX2__)
#include <immintrin.h>
#define RT_LANES 8
#else
#define RT_LANES 4
#endif

#define RT_INLINE static inline __attribute__((always_inline))

namespace rt {
namespace RT_ISA {

constexpr int kLanes = RT_LANES;
typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecI __attribute__((vector_size(kLanes * 4)));
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecH __attribute__((vector_size(kLanes * 2)));

template <class T>
RT_INLINE T load_as(const void* p) {
  T v;
  memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
RT_INLINE void store_as(void* p, T v) {
  memcpy(p, &v, sizeof v);
}
RT_INLINE Vec load(const float* p) { return load_as<Vec>(p); }
RT_INLINE void store(float* p, Vec v) { store_as(p, v); }
RT_INLINE Vec splat(float x) { return x - Vec{}; }
RT_INLINE VecU bits(Vec v) { return (VecU)v; }

RT_INLINE float bf16_to_f32(uint16_t h) {
  const uint32_t u = static_cast<uint32_t>(h) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
// Round to nearest even; NaN keeps its sign and stays NaN.
RT_INLINE uint16_t f32_to_bf16(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  if ((u & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(u >> 16 | 0x40);
  return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
RT_INLINE Vec load_bf16(const uint16_t* p) {
  return (Vec)(__builtin_convertvector(load_as<VecH>(p), VecU) << 16);
}
RT_INLINE void store_bf16(uint16_t* p, Vec v) {
#if defined(__AVX512BF16__)
  const __m256i h = (__m256i)_mm512_cvtneps_pbh((__m512)v);
  store_as(p, h);
#else
  const VecU u = bits(v);
  const VecU rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  const VecU quiet = u >> 16 | 0x40;
  const VecU is_nan = (VecU)((u & 0x7fffffff) > 0x7f800000);
  store_as(p, __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), VecH));
#endif
}

// kLanes signed bytes, by intrinsics: gcc converts a vector of bytes to floats one by one.
RT_INLINE Vec load_bytes(const int8_t* p) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_as<__m128i>(p)));
#elif defined(__AVX2__)
  return (Vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(load_as<int64_t>(p))));
#else
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = p[i];
  return v;
#endif
}

RT_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }
RT_INLINE Vec min(Vec a, Vec b) { return a < b ? a : b; }

// a * b + c, rounded once where the processor can: for sums whose bits must not depend on which of
// two products the compiler fuses.
RT_INLINE Vec fmadd(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__)
  return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

// Sum of the lanes in one fixed tree order.
RT_INLINE float sum_lanes(Vec v) {
  float t[kLanes];
  store(t, v);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) t[i] += t[i + width];
  return t[0];
}
// Lane i is the sum of v[i]'s lanes, in a tree order that is the same for all of them.
RT_INLINE Vec sum_each(const Vec* v) {
#if defined(__AVX512F__)
  __m512 t[16];
  for (int i = 0; i < 16; i += 4) {  // pairs within quarters, then quads
    const __m512 a = (__m512)v[i], b = (__m512)v[i + 1], c = (__m512)v[i + 2], d = (__m512)v[i + 3];
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    t[i / 4] = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  }
  for (int i = 0; i < 4; i += 2)  // halves of the quarters of two, then of all
    t[i] = _mm512_add_ps(_mm512_shuffle_f32x4(t[i], t[i + 1], 0x88),
                         _mm512_shuffle_f32x4(t[i], t[i + 1], 0xdd));
  return (Vec)_mm512_add_ps(_mm512_shuffle_f32x4(t[0], t[2], 0x88),
                            _mm512_shuffle_f32x4(t[0], t[2], 0xdd));
#elif defined(__AVX2__)
  __m256 t[2];
  for (int i = 0; i < 2; ++i) {
    const Vec* of = v + 4 * i;
    const __m256 ab = _mm256_hadd_ps((__m256)of[0], (__m256)of[1]);
    const __m256 cd = _mm256_hadd_ps((__m256)of[2], (__m256)of[3]);
    t[i] = _mm256_hadd_ps(ab, cd);
  }
  return (Vec)_mm256_add_ps(_mm256_permute2f128_ps(t[0], t[1], 0x20),
                            _mm256_permute2f128_ps(t[0], t[1], 0x31));
#else
  Vec sums;
  for (int i = 0; i < kLanes; ++i) sums[i] = sum_lanes(v[i]);
  return sums;
#endif
}
RT_INLINE float max_lanes(Vec v) {
  float t[kLanes];
  store(t, v);
  float m = t[0];
  for (int i = 1; i < kLanes; ++i) m = t[i] > m ? t[i] : m;
  return m;
}

// 2^x for x <= 126, exact at 0; below -126 it is 2^-126. Relative error about 2e-7.
RT_INLINE Vec exp2_of(Vec x) {
  x = max(splat(-126.0f), x);  // this order lets NaN through
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Vec t = x + magic;
  const Vec f = x - (t - magic);
  Vec p = splat(1.5403530e-4f);
  p = p * f + 1.3333558e-3f;
  p = p * f + 9.6181291e-3f;
  p = p * f + 5.5504109e-2f;
  p = p * f + 2.4022651e-1f;
  p = p * f + 6.9314718e-1f;
  p = p * f + 1.0f;
  return (Vec)(bits(p) + (bits(t) << 23));
}
RT_INLINE float exp2_of(float x) { return exp2_of(splat(x))[0]; }

constexpr float kLog2E = 1.44269504f;

// 2^f on [0, 1] as 1 + c1 f + .. + c4 f^4, least relative error 2.9e-6.
constexpr float kShortC1 = 0.69304484f, kShortC2 = 0.24128020f, kShortC3 = 0.05224247f,
                kShortC4 = 0.01342669f;

// 1 / x for normal x with a normal result, within 2 ulp; NaN stays NaN.
RT_INLINE Vec reciprocal(Vec x) {
#if defined(__AVX512F__)
  // One Newton step on the 14-bit estimate: a sixth of a division's time.
  const Vec guess = (Vec)_mm512_rcp14_ps((__m512)x);
  return guess + guess * (1.0f - x * guess);
#else
  return 1.0f / x;
#endif
}

RT_INLINE Vec silu(Vec x) {
  // The clamp keeps 2^y finite; silu(-88) is 0 in f32 anyway.
  const Vec e = exp2_of(max(min(x * -kLog2E, splat(126.0f)), splat(-126.0f)));
  return x * reciprocal(1.0f + e);
}

// silu to 7e-5 relative, for results that are rounded to bf16, which loses thirty times as much.
RT_INLINE Vec silu_short(Vec x) {
#if defined(__AVX512DQ__)
  const __m512 y = (__m512)(x * -kLog2E);
  const Vec f = (Vec)_mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF);  // y - floor(y)
  Vec p = splat(kShortC4);
  p = p * f + kShortC3;
  p = p * f + kShortC2;
  p = p * f + kShortC1;
  p = p * f + 1.0f;
  const Vec e = (Vec)_mm512_scalef_ps((__m512)p, y);
  return x * (Vec)_mm512_rcp14_ps((__m512)(1.0f + e));
#else
  return silu(x);
#endif
}

}  // namespace RT_ISA
}  // namespace rt
