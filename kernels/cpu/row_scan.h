// Vector passes over a row of logits, which sampling.cpp is built on.
//
// Included per instruction set. Each result depends on its own row only.
#pragma once

#include "sampling.h"
#include "simd.h"

namespace rt {
namespace RT_ISA {

// The largest value, NaN if any is NaN.
static float row_peak(const float* x, int64_t n) {
  Vec top = splat(x[0]);
  VecI fault = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec v = load(x + i);
    top = max(v, top);
    fault |= (VecI)(v != v);
  }
  float best = max_lanes(top);
  bool has_nan = best != best;
  for (int lane = 0; lane < kLanes; ++lane) has_nan |= fault[lane] != 0;
  for (; i < n; ++i) {
    has_nan |= x[i] != x[i];
    best = x[i] > best ? x[i] : best;
  }
  return has_nan ? __builtin_nanf("") : best;
}

// The largest value of each block of kScanBlock; the last block may be short. No NaN among them.
static void row_block_maxima(const float* x, int64_t n, float* out) {
  for (int64_t begin = 0; begin < n; begin += kScanBlock) {
    float best = x[begin];
    if (begin + kScanBlock <= n) {
      Vec top = load(x + begin);
      for (int i = kLanes; i < kScanBlock; i += kLanes) top = max(load(x + begin + i), top);
      best = max_lanes(top);
    } else {
      for (int64_t i = begin; i < n; ++i) best = x[i] > best ? x[i] : best;
    }
    *out++ = best;
  }
}

// exp((x - best) / temperature), 0 where that is below min_weight or next to nothing. Infinities
// among the values weigh 1 and leave nothing to the others.
RT_INLINE Vec weights_of(Vec x, float best, float temperature, float min_weight) {
  if (best == __builtin_inff()) return x == splat(best) ? splat(1.0f) : splat(0.0f);
  const Vec scaled = (x - splat(best)) / splat(temperature);
  const Vec weight = exp2_of(scaled * kLog2E);
  const Vec kept = scaled < splat(-87.0f) ? splat(0.0f) : weight;
  return kept < splat(min_weight) ? splat(0.0f) : kept;
}

// Writes the weights of at most kWeightBlock values and returns their sum.
static double row_weights(const float* x, int n, float best, float temperature, float min_weight,
                          float* out) {
  Vec sum = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const Vec w = weights_of(load(x + i), best, temperature, min_weight);
    store(out + i, w);
    sum = sum + w;
  }
  double total = sum_lanes(sum);
  for (; i < n; ++i) {
    out[i] = weights_of(splat(x[i]), best, temperature, min_weight)[0];
    total += out[i];
  }
  return total;
}

}  // namespace RT_ISA
}  // namespace rt
