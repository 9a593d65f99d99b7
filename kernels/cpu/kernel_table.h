// The functions one instruction set provides; a model picks one table when it is created.
#pragma once

#include "abi.h"
#include "attention_plan.h"
#include "linear.h"

namespace rt {

struct RopeArgs {
  const float* cos;
  const float* sin;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  int num_heads, num_kv_heads, head_dim, rotary_dim;
  int q_stride;  // elements per head of the query buffer, >= head_dim, the rest zero
  bool as_f32;   // the queries
  int32_t kv_dtype;
  float eps;
};

// Elements of one kv head in the pool, and bytes of an element.
inline int kv_head_elements(int32_t kv_dtype, int head_dim) {
  return kv_dtype == RT_I8 ? head_dim + 4 : head_dim;
}
inline int kv_element_bytes(int32_t kv_dtype) {
  return kv_dtype == RT_I8 ? 1 : kv_dtype == RT_BF16 ? 2 : 4;
}

// One layer's attention over the whole ragged batch.
struct AttentionArgs {
  const RtStep* step;
  const AttentionPlan* plan;
  const void* q;  // [T, num_heads, q_stride]
  const void* k;  // this layer's pool
  const void* v;
  int num_heads, num_kv_heads, head_dim, q_stride;
  bool as_f32;  // the queries
  int32_t kv_dtype;
  int kv_head_stride;  // elements of the pool
  float scale;
  // One of the two: bf16 activations written in place, or plain rows for any other format.
  const Activation* out_activation;
  float* out_rows;  // [T, num_heads * head_dim]
  // Partial results of units that do not see all keys, see attention_plan.h.
  float* partial_o;
  float* partial_max;
  float* partial_sum;
};

struct KernelTable {
  void (*linear_unit)(const LinearArgs&, const LinearUnit&, ThreadScratch&);
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* out);
  void (*write_row)(const Activation& act, int m, const float* row);
  void (*rope_and_store)(const RopeArgs&, float* qkv, int64_t position, void* q_out, void* k_out,
                         void* v_out);
  // Units [0, plan.num_units) in any order on any thread, a barrier, then the merge units.
  void (*attention_unit)(const AttentionArgs&, int unit, ThreadScratch&);
  void (*attention_merge)(const AttentionArgs&, int unit);
  void (*logits_stats)(const float* row, int64_t n, float* log_sum_exp, int32_t* argmax);
  void (*enter)(ThreadScratch&);  // before and after a thread's part of a step
  void (*leave)(ThreadScratch&);
  int32_t (*read_memory)(const uint8_t* p, size_t bytes);
  double (*multiply_registers)(int rounds);  // returns the operations done
  int wide_rows;          // rows from which linear_unit uses kActWide, INT_MAX for never
  float (*row_peak)(const float* x, int64_t n);  // see row_scan.h for these
  void (*row_block_maxima)(const float* x, int64_t n, float* out);
  double (*row_weights)(const float* x, int n, float best, float temperature, float min_weight,
                        float* out);
  float (*legal_peak)(const float* x, const uint32_t* legal, int64_t n);  // see legal_scan.h
  int64_t (*find_value)(const float* x, const uint32_t* legal, int64_t n, float value);
  int64_t (*gather_legal)(const float* x, const uint32_t* legal, int64_t n, float* values,
                          int32_t* places);
};

const KernelTable& scalar_table();
const KernelTable& avx2_table();
const KernelTable& avx512_table();
const KernelTable& avx512bf16_table();
const KernelTable& amx_table();

}  // namespace rt
