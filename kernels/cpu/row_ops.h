// Work on single rows: normalisation, rotation, and writing activations in the layouts kernels read.
//
// Included per instruction set. Each function's result depends on its own row only.
#pragma once

#include "kernel_table.h"
#include "simd.h"

namespace rt {
namespace RT_ISA {

RT_INLINE float sum_of_squares(const float* x, int n) {
  Vec acc = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) acc = load(x + i) * load(x + i) + acc;
  float sum = sum_lanes(acc);
  for (; i < n; ++i) sum = x[i] * x[i] + sum;
  return sum;
}

static void rms_norm(const float* x, const float* weight, int n, float eps, float* out) {
  const float scale = 1.0f / __builtin_sqrtf(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store(out + i, load(x + i) * scale * load(weight + i));
  for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
}

static void write_row_bf16(const Activation& act, int m, const float* row) {
  for (int k0 = 0; k0 < act.k_padded; k0 += kKBlock) {
    uint16_t* out = act.bf16_at(m, k0);
    if (k0 + kKBlock <= act.k) {
      for (int i = 0; i < kKBlock; i += kLanes) store_bf16(out + i, load(row + k0 + i));
    } else {
      for (int i = 0; i < kKBlock; ++i) out[i] = k0 + i < act.k ? f32_to_bf16(row[k0 + i]) : 0;
    }
  }
}

// The largest magnitude of n values, NaN when one of them is not finite: a scale made of it then
// carries the fault on, where 8-bit integers would hide it. As integers, magnitudes are in the same
// order and everything that is not finite stands above.
RT_INLINE float max_abs(const float* x, int n) {
  VecU top = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecU v = bits(load(x + i)) & 0x7fffffffu;
    top = v > top ? v : top;
  }
#if defined(__AVX512F__)
  uint32_t most = _mm512_reduce_max_epu32((__m512i)top);
#else
  uint32_t most = 0;
  for (int lane = 0; lane < kLanes; ++lane) most = top[lane] > most ? top[lane] : most;
#endif
  for (; i < n; ++i) {
    const uint32_t v = load_as<uint32_t>(x + i) & 0x7fffffffu;
    most = v > most ? v : most;
  }
  return most < 0x7f800000u ? load_as<float>(&most) : __builtin_nanf("");
}

// n values over a scale, rounded to nearest even, into q.
RT_INLINE void round_to_bytes(const float* x, int n, float inverse, int8_t* q) {
  typedef int8_t Bytes __attribute__((vector_size(kLanes)));
  const Vec magic = splat(12582912.0f);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const VecI rounded = (VecI)(load(x + i) * inverse + magic) - (VecI)magic;
    store_as(q + i, __builtin_convertvector(rounded, Bytes));
  }
  for (; i < n; ++i)
    q[i] = static_cast<int8_t>(static_cast<int32_t>((x[i] * inverse + magic[0]) - magic[0]));
}

// Symmetric 8-bit: x ~ scale * q, q in [-127, 127].
RT_INLINE float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

// 32 integers as bf16 for tiles, the middle two of each quad exchanged. Only levels with tiles ask.
RT_INLINE void widen_block(const int8_t* q, uint16_t* out) {
#if defined(__AVX512BF16__)
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  for (int i = 0; i < kKBlock; i += 16) {
    const __m128i bytes = _mm_shuffle_epi8(load_as<__m128i>(q + i), order);
    store_bf16(out + i, (Vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  }
#else
  for (int i = 0; i < kKBlock; ++i)
    out[i] = f32_to_bf16(static_cast<float>(q[i / 4 * 4 + i % 2 * 2 + i % 4 / 2]));
#endif
}

// Sums of the two halves of 32 integers.
RT_INLINE void sum_halves(const int8_t* q, int32_t* sum) {
#if defined(__AVX512VNNI__)
  __m256i parts = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), load_as<__m256i>(q));
  parts = _mm256_hadd_epi32(parts, parts);
  parts = _mm256_hadd_epi32(parts, parts);
  sum[0] = _mm256_extract_epi32(parts, 0);
  sum[1] = _mm256_extract_epi32(parts, 4);
#else
  sum[0] = sum[1] = 0;
  for (int i = 0; i < kKBlock; ++i) sum[i / 16] += q[i];
#endif
}

static void write_row_q8(const Activation& act, int m, const float* row) {
  const int blocks = act.k_padded / kKBlock;
  for (int b = 0; b < blocks; ++b) {
    const int left = act.k - b * kKBlock, n = left < kKBlock ? left : kKBlock;
    const int64_t at = act.q8_block(m, b);
    int8_t* q = act.q8 + at * kKBlock;
    const float scale = max_abs(row + b * kKBlock, n) / 127.0f;
    act.q8_scale[at] = scale;
    round_to_bytes(row + b * kKBlock, n, inverse_of(scale), q);
    for (int i = n; i < kKBlock; ++i) q[i] = 0;
    int32_t sum[2];
    sum_halves(q, sum);
    act.q8_half_sum[2 * at] = static_cast<float>(sum[0]);
    act.q8_half_sum[2 * at + 1] = static_cast<float>(sum[1]);
    act.q8_sum[at] = static_cast<float>(sum[0] + sum[1]);
    if (act.formats & kActWide) widen_block(q, act.wide + at * kKBlock);
  }
}

static void write_row_row_q8(const Activation& act, int m, const float* row) {
  const float scale = max_abs(row, act.k) / 127.0f;
  act.row_scale[m] = scale;
  for (int k0 = 0; k0 < act.k_padded_row_q8(); k0 += 64) {
    const int left = act.k - k0, n = left < 64 ? left : 64;
    int8_t* q = act.row_q8_at(m, k0);
    round_to_bytes(row + k0, n, inverse_of(scale), q);
    for (int i = n; i < 64; ++i) q[i] = 0;
  }
}

static void write_row(const Activation& act, int m, const float* row) {
  if (act.formats & kActBf16) write_row_bf16(act, m, row);
  if (act.formats & kActQ8) write_row_q8(act, m, row);
  if (act.formats & kActRowQ8) write_row_row_q8(act, m, row);
  if (act.formats & kActF32) {
    float* out = act.f32 + static_cast<int64_t>(m) * act.k_padded;
    if (out != row) memcpy(out, row, sizeof(float) * static_cast<size_t>(act.k));
  }
}

// Rotates pairs (i, i + half) of the first 2 * half values: the "rotate half" convention.
RT_INLINE void rotate(float* x, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Vec a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, a * c - b * s);
    store(x + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

RT_INLINE void write_vector(const float* x, int n, int padded, bool as_f32, void* out) {
  if (as_f32) {
    memcpy(out, x, sizeof(float) * static_cast<size_t>(n));
    return;
  }
  uint16_t* h = static_cast<uint16_t*>(out);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store_bf16(h + i, load(x + i));
  for (; i < n; ++i) h[i] = f32_to_bf16(x[i]);
  for (; i < padded; ++i) h[i] = 0;
}

// n values of one kv head into the pool; 8-bit ones are followed by their scale.
RT_INLINE void store_head(const float* x, int n, int32_t kv_dtype, char* out) {
  if (kv_dtype != RT_I8) return write_vector(x, n, n, kv_dtype == RT_F32, out);
  const float scale = max_abs(x, n) / 127.0f;
  round_to_bytes(x, n, inverse_of(scale), reinterpret_cast<int8_t*>(out));
  memcpy(out + n, &scale, sizeof scale);
}

// One token: norm and rotate q and k, then store q for attention and k, v into the pool.
static void rope_and_store(const RopeArgs& args, float* qkv, int64_t position, void* q_out,
                           void* k_out, void* v_out) {
  const int d = args.head_dim, half = args.rotary_dim / 2;
  const float* cos = args.cos + position * half;
  const float* sin = args.sin + position * half;
  const size_t item = args.as_f32 ? 4 : 2;
  char* q_at = static_cast<char*>(q_out);
  char* k_at = static_cast<char*>(k_out);
  char* v_at = static_cast<char*>(v_out);
  const size_t kv_head = static_cast<size_t>(kv_head_elements(args.kv_dtype, d)) *
                         static_cast<size_t>(kv_element_bytes(args.kv_dtype));
  for (int h = 0; h < args.num_heads; ++h, q_at += item * static_cast<size_t>(args.q_stride)) {
    float* x = qkv + h * d;
    if (args.q_norm != nullptr) rms_norm(x, args.q_norm, d, args.eps, x);
    rotate(x, cos, sin, half);
    write_vector(x, d, args.q_stride, args.as_f32, q_at);
  }
  for (int h = 0; h < args.num_kv_heads; ++h, k_at += kv_head, v_at += kv_head) {
    float* x = qkv + (args.num_heads + h) * d;
    if (args.k_norm != nullptr) rms_norm(x, args.k_norm, d, args.eps, x);
    rotate(x, cos, sin, half);
    store_head(x, d, args.kv_dtype, k_at);
    store_head(x + args.num_kv_heads * d, d, args.kv_dtype, v_at);
  }
}

static void logits_stats(const float* row, int64_t n, float* log_sum_exp, int32_t* argmax) {
  Vec top = splat(row[0]);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) top = max(top, load(row + i));
  float best = max_lanes(top);
  for (; i < n; ++i) best = row[i] > best ? row[i] : best;
  if (argmax != nullptr) {
    int64_t at = 0;
    while (at < n - 1 && row[at] != best) ++at;
    *argmax = static_cast<int32_t>(at);
  }
  if (log_sum_exp == nullptr) return;
  const float shift = best * kLog2E;
  Vec sum = {};
  for (i = 0; i + kLanes <= n; i += kLanes) sum = sum + exp2_of(load(row + i) * kLog2E - shift);
  float total = sum_lanes(sum);
  for (; i < n; ++i) total += exp2_of(row[i] * kLog2E - shift);
  *log_sum_exp = best + __builtin_logf(total);
}

}  // namespace RT_ISA
}  // namespace rt
