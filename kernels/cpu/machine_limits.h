// What this machine can do at most, measured: the yardsticks of benchmark/cpu_kernels.py.
//
// Included per instruction set.
#pragma once

#include "simd.h"

namespace rt {
namespace RT_ISA {

// Reads `bytes` (a multiple of 256) and returns something that depends on all of them.
static int32_t read_memory(const uint8_t* p, size_t bytes) {
  VecI sum[4] = {};
  for (size_t at = 0; at < bytes; at += 4 * sizeof(VecI))
    for (int i = 0; i < 4; ++i) sum[i] ^= load_as<VecI>(p + at + i * sizeof(VecI));
  const VecI all = sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
  return all[0];
}

// Multiply-adds from registers; returns the floating point operations done.
static double multiply_registers(int rounds) {
  Vec acc[8] = {};
  const Vec x = splat(0.999f), y = splat(0.5f);
  for (int i = 0; i < rounds; ++i)
    for (int j = 0; j < 8; ++j) {
      acc[j] = acc[j] * x + y;
    }
  float kept[kLanes];
  for (int j = 1; j < 8; ++j) acc[0] = acc[0] + acc[j];
  store(kept, acc[0]);
  asm volatile("" ::"r"(kept) : "memory");  // the loop must not be dropped
  return 2.0 * 8 * kLanes * rounds;
}

}  // namespace RT_ISA
}  // namespace rt
