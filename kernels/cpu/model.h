// A model's packed weights, its thread team, and the working memory of one step.
#pragma once

#include <memory>
#include <vector>

#include "abi.h"
#include "aligned_buffer.h"
#include "attention_plan.h"
#include "head_rows.h"
#include "kernel_table.h"
#include "linear.h"
#include "sampling.h"
#include "thread_pool.h"

namespace rt {

struct Layer {
  PackedWeight q, k, v, o, gate, up, down;
  std::vector<float> attn_norm, mlp_norm, q_bias, k_bias, v_bias, o_bias, q_norm, k_norm;
};

// Buffers for up to some number of tokens and logit rows; grown between steps, never during one.
struct Workspace {
  AlignedBuffer residual;   // [T, hidden] f32
  AlignedBuffer qkv;        // [T, (H + 2 K) * D] f32
  AlignedBuffer q;          // [T, H, q_stride] bf16 or f32
  AlignedBuffer rows;       // f32 rows before quantisation: attention output, silu * up
  AlignedBuffer partials;   // attention results per (token, split)
  std::vector<AlignedBuffer> thread_rows;       // [hidden or wider] f32 of each thread
  std::vector<AlignedBuffer> thread_attention;
  std::vector<AlignedBuffer> thread_columns;    // [L, 16] logits of one panel
  std::vector<AlignedBuffer> thread_panels;     // unpacked weights, ThreadScratch::panels
  std::vector<std::vector<Best>> thread_best;
  std::vector<ThreadScratch*> scratch;

  struct ActivationMemory {
    Activation view;
    AlignedBuffer bf16, f32, q8, q8_scale, q8_sum, q8_half_sum, wide, row_q8, row_scale;
    // Room for m rows of k values in the given formats, and from wide_rows on in kActWide where the
    // formats have kActQ8; sets view.
    void reserve(int m, int k, uint32_t formats, int wide_rows);
  };
  ActivationMemory hidden_in, attention_out, mlp_in, head_in, single_in;
  // One for each member, in steps of so few tokens that each computes what the next product reads.
  std::vector<ActivationMemory> own_in, own_attention, own_mlp;
  std::vector<SamplingScratch> sampling;

  AttentionPlan plan;
  HeadRows head_rows;

  // One scratch a thread, with room for unpacked panels of up to `widest` columns.
  void reserve_scratch(int n_threads, int64_t widest);

  Workspace() = default;
  Workspace(const Workspace&) = delete;
  ~Workspace();
};

}  // namespace rt

struct RtModel {
  explicit RtModel(const RtConfig& config);

  RtConfig config;
  int level;
  const rt::KernelTable* kernels;
  rt::ThreadPool pool;
  rt::Arena arena;  // every packed weight
  std::vector<rt::Layer> layers;
  rt::PackedWeight embedding, lm_head;
  std::vector<float> final_norm, rope_cos, rope_sin;
  bool finalized = false;
  rt::Workspace workspace;

  bool is_f32() const { return config.compute_dtype == RT_F32; }
  int q_width() const { return config.num_heads * config.head_dim; }
  int kv_width() const { return config.num_kv_heads * config.head_dim; }
  int q_stride() const {
    return is_f32() ? config.head_dim : static_cast<int>(rt::round_up(config.head_dim, 32));
  }
  const rt::PackedWeight& head() const { return config.tied_embeddings ? embedding : lm_head; }

  // The weight a matrix tensor id names, or null.
  rt::PackedWeight* matrix(int32_t tensor, int32_t layer);
  std::vector<float>* vector(int32_t tensor, int32_t layer);
};

namespace rt {

// Throws std::invalid_argument or std::runtime_error with a text for the caller.
void set_tensor(RtModel& model, int32_t tensor, int32_t layer, const void* data, int32_t dtype,
                int64_t rows, int64_t cols, int32_t weight_format);
void finalize(RtModel& model);
void run_step(RtModel& model, const RtStep& step);
void run_sampling(RtModel& model, float* logits, int64_t stride, RtSampleRow* rows, int num_rows);
void run_single_linear(RtModel& model, const PackedWeight& weight, const float* x, int64_t m,
                       float* out);
// All members of the team call it with equal arguments, but for inputs with equal values; ends
// without a barrier.
void run_linear(RtModel& model, const LinearArgs& args, const LinearPlan& plan, int member,
                ThreadScratch& scratch);

}  // namespace rt
