// Paged attention for one (token, kv head) at a time, any instruction set, bf16 or f32 pool.
//
// Included per instruction set. Keys are taken in position order in splits of kSplitTokens; each
// split is merged into the running result the same way whatever the batch.
#pragma once

#include "kernel_table.h"
#include "simd.h"

namespace rt {
namespace RT_ISA {

RT_INLINE Vec load_item(const float* p) { return load(p); }
RT_INLINE Vec load_item(const uint16_t* p) { return load_bf16(p); }
RT_INLINE float item(const float* p) { return *p; }
RT_INLINE float item(const uint16_t* p) { return bf16_to_f32(*p); }

template <class T>
RT_INLINE float dot(const float* q, const T* k, int d) {
  Vec acc = {};
  int i = 0;
  for (; i + kLanes <= d; i += kLanes) acc = load(q + i) * load_item(k + i) + acc;
  float sum = sum_lanes(acc);
  for (; i < d; ++i) sum = q[i] * item(k + i) + sum;
  return sum;
}

template <class T>
RT_INLINE void scale_or_add(float* o, float keep, float p, const T* v, int d) {
  int i = 0;
  for (; i + kLanes <= d; i += kLanes) store(o + i, p * load_item(v + i) + load(o + i) * keep);
  for (; i < d; ++i) o[i] = p * item(v + i) + o[i] * keep;
}

template <class T>
static void attend_head(const AttentionArgs& args, const int32_t* slots, int num_keys,
                        int kv_head, const float* q, float* scores, float* o) {
  const int d = args.head_dim;
  const T* k = static_cast<const T*>(args.k) + kv_head * d;
  const T* v = static_cast<const T*>(args.v) + kv_head * d;
  const int64_t stride = args.step->kv_slot_stride;
  float top = -1e30f, sum = 0.0f;
  for (int i = 0; i < d; ++i) o[i] = 0.0f;
  for (int begin = 0; begin < num_keys; begin += kSplitTokens) {
    const int end = begin + kSplitTokens < num_keys ? begin + kSplitTokens : num_keys;
    float split_top = top;
    for (int j = begin; j < end; ++j) {
      const float s = dot(q, k + slots[j] * stride, d) * args.scale;
      scores[j - begin] = s;
      split_top = s > split_top || s != s ? s : split_top;
    }
    const float keep = exp2_of((top - split_top) * kLog2E);
    sum *= keep;
    for (int j = begin; j < end; ++j) {
      const float p = exp2_of((scores[j - begin] - split_top) * kLog2E);
      sum += p;
      scale_or_add(o, j == begin ? keep : 1.0f, p, v + slots[j] * stride, d);
    }
    top = split_top;
  }
  const float inverse = 1.0f / sum;
  for (int i = 0; i < d; ++i) o[i] *= inverse;
}

RT_INLINE void write_head(const AttentionArgs& args, int token, int head, const float* o) {
  const int d = args.head_dim;
  if (args.out_rows != nullptr) {
    memcpy(args.out_rows + (static_cast<int64_t>(token) * args.num_heads + head) * d, o,
           sizeof(float) * static_cast<size_t>(d));
    return;
  }
  for (int i = 0; i < d; i += kPanel) {
    uint16_t* out = args.out_activation->bf16_at(token, head * d + i);
    for (int v = 0; v < kPanel; v += kLanes) store_bf16(out + v, load(o + i + v));
  }
}

static void attention_unit_portable(const AttentionArgs& args, int unit, ThreadScratch& scratch) {
  const RtStep& step = *args.step;
  const int token = unit / args.num_kv_heads, kv_head = unit % args.num_kv_heads;
  const int row = args.plan->token_row[token];
  const int32_t* slots = step.slot_table + step.table_rows[row] * step.slot_table_stride;
  const int num_keys = static_cast<int>(step.positions[token]) + 1;
  const int group = args.num_heads / args.num_kv_heads;
  float* q = reinterpret_cast<float*>(scratch.staging);
  float* o = q + args.head_dim;
  float* scores = o + args.head_dim;
  for (int g = 0; g < group; ++g) {
    const int head = kv_head * group + g;
    const int64_t at = (static_cast<int64_t>(token) * args.num_heads + head) * args.q_stride;
    if (args.as_f32) {
      memcpy(q, static_cast<const float*>(args.q) + at, sizeof(float) * static_cast<size_t>(args.head_dim));
      attend_head<float>(args, slots, num_keys, kv_head, q, scores, o);
    } else {
      const uint16_t* h = static_cast<const uint16_t*>(args.q) + at;
      for (int i = 0; i < args.head_dim; ++i) q[i] = bf16_to_f32(h[i]);
      attend_head<uint16_t>(args, slots, num_keys, kv_head, q, scores, o);
    }
    write_head(args, token, head, o);
  }
}

}  // namespace RT_ISA
}  // namespace rt
