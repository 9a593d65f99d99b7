#include "cpu_features.h"

#include "abi.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace rt {

#if defined(__x86_64__)
namespace {

bool tiles_permitted() {
  // ARCH_REQ_XCOMP_PERM for the tile data component: without it the first tile load is fatal.
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

bool has_amx() {
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool bf16 = d >> 22 & 1, tile = d >> 24 & 1, int8 = d >> 25 & 1;
  return bf16 && tile && int8 && tiles_permitted();
}

bool has_avx512_bf16() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
}

int32_t detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return RT_LEVEL_SCALAR;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (!avx512) return RT_LEVEL_AVX2;
  if (!has_avx512_bf16() || !__builtin_cpu_supports("avx512vnni") ||
      !__builtin_cpu_supports("avx512vbmi"))
    return RT_LEVEL_AVX512;
  return has_amx() ? RT_LEVEL_AMX : RT_LEVEL_AVX512_BF16;
}

}  // namespace

int32_t best_level() {
  static const int32_t level = detect();
  return level;
}
#else
int32_t best_level() { return RT_LEVEL_SCALAR; }
#endif

}  // namespace rt
