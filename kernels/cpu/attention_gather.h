// One token's keys or values of one kv head out of the pool, as f32, whatever the pool's type.
//
// Included per instruction set. An int8 pool keeps its scale behind the head's values, so that both
// come with one cache line.
#pragma once

#include "kernel_table.h"
#include "simd.h"

namespace rt {
namespace RT_ISA {

RT_INLINE float head_scale(const int8_t* head, int d) { return load_as<float>(head + d); }

RT_INLINE void widen_head(const float* head, int d, float* out) {
  memcpy(out, head, sizeof(float) * static_cast<size_t>(d));
}
RT_INLINE void widen_head(const uint16_t* head, int d, float* out) {
  int i = 0;
  for (; i + kLanes <= d; i += kLanes) store(out + i, load_bf16(head + i));
  for (; i < d; ++i) out[i] = bf16_to_f32(head[i]);
}
RT_INLINE void widen_head(const int8_t* head, int d, float* out) {
  const float scale = head_scale(head, d);
  int i = 0;
  for (; i + kLanes <= d; i += kLanes) store(out + i, load_bytes(head + i) * scale);
  for (; i < d; ++i) out[i] = static_cast<float>(head[i]) * scale;
}

constexpr int kFetchAhead = 8;  // tokens between a prefetch and its use

// Keys or values of one kv head at num_keys slots: [padded][width] f32, zero where there is nothing.
template <class T>
static void gather_head(const AttentionArgs& args, const void* pool, const int32_t* slots,
                        int num_keys, int padded, int kv_head, int width, float* out) {
  const int d = args.head_dim;
  const T* base = static_cast<const T*>(pool) + kv_head * args.kv_head_stride;
  const int64_t stride = args.step->kv_slot_stride;
  const size_t tail = sizeof(float) * static_cast<size_t>(width - d);
  for (int j = 0; j < num_keys; ++j, out += width) {
    // Slots lie anywhere, so the hardware cannot guess the next ones.
    if (j + kFetchAhead < num_keys) {
      const char* next = reinterpret_cast<const char*>(base + slots[j + kFetchAhead] * stride);
      for (size_t i = 0; i < sizeof(T) * static_cast<size_t>(d); i += 64) __builtin_prefetch(next + i);
    }
    widen_head(base + slots[j] * stride, d, out);
    memset(out + d, 0, tail);
  }
  memset(out, 0, sizeof(float) * static_cast<size_t>(width) * static_cast<size_t>(padded - num_keys));
}

RT_INLINE void gather_as_f32(const AttentionArgs& args, const void* pool, const int32_t* slots,
                             int num_keys, int padded, int kv_head, int width, float* out) {
  switch (args.kv_dtype) {
    case RT_I8: return gather_head<int8_t>(args, pool, slots, num_keys, padded, kv_head, width, out);
    case RT_BF16:
      return gather_head<uint16_t>(args, pool, slots, num_keys, padded, kv_head, width, out);
    default: return gather_head<float>(args, pool, slots, num_keys, padded, kv_head, width, out);
  }
}

}  // namespace RT_ISA
}  // namespace rt
