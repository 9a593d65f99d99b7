// The flat C interface of the CPU engine: everything a caller (ctypes) may touch.
//
// Plain pointers and integers only; the caller owns every array it passes to rt_step, the KV pool
// included. Weights are copied (packed) by rt_set_tensor, so their source may be freed afterwards.
// Functions that can fail return non-zero and leave a text in rt_last_error (per thread).
#pragma once

#include <cstdint>

#define RT_API extern "C" __attribute__((visibility("default")))

// Source types of rt_set_tensor; the numbers are ggml's, so a GGUF loader passes its own through.
enum RtDtype : int32_t {
  RT_F32 = 0,
  RT_F16 = 1,
  RT_Q4_0 = 2,
  RT_Q4_1 = 3,
  RT_Q5_0 = 6,
  RT_Q5_1 = 7,
  RT_Q8_0 = 8,
  RT_Q4_K = 12,
  RT_Q5_K = 13,
  RT_Q6_K = 14,
  RT_I8 = 24,  // of the KV pool only
  RT_BF16 = 30,
};

// How a float matrix is kept: as the compute type says, or as 8-bit with one scale per output row,
// multiplied by 8-bit or by bf16 activations.
enum RtWeightFormat : int32_t { RT_KEEP = 0, RT_W8A8 = 1, RT_W8A16 = 2 };

// Instruction sets, worst to best; RT_LEVEL_AUTO takes the best one the processor has.
enum RtLevel : int32_t {
  RT_LEVEL_AUTO = -1,
  RT_LEVEL_SCALAR = 0,
  RT_LEVEL_AVX2 = 1,
  RT_LEVEL_AVX512 = 2,
  RT_LEVEL_AVX512_BF16 = 3,
  RT_LEVEL_AMX = 4,
};

enum RtTensor : int32_t {
  RT_EMBEDDING = 0,   // [vocab, hidden]; also the head when tied_embeddings
  RT_LM_HEAD = 1,     // [vocab, hidden]
  RT_FINAL_NORM = 2,  // [hidden]
  RT_ROPE_COS = 3,    // [max_positions, rotary_dim / 2] f32, scaling already applied
  RT_ROPE_SIN = 4,
  RT_ATTN_NORM = 10,  // per layer from here on
  RT_Q = 11,          // [num_heads * head_dim, hidden]
  RT_K = 12,
  RT_V = 13,
  RT_Q_BIAS = 14,
  RT_K_BIAS = 15,
  RT_V_BIAS = 16,
  RT_Q_NORM = 17,  // [head_dim]
  RT_K_NORM = 18,
  RT_O = 19,  // [hidden, num_heads * head_dim]
  RT_O_BIAS = 20,
  RT_MLP_NORM = 21,
  RT_GATE = 22,  // [intermediate, hidden]
  RT_UP = 23,
  RT_DOWN = 24,  // [hidden, intermediate]
};

struct RtConfig {
  int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim;
  int32_t vocab_size, max_positions, rotary_dim;
  int32_t compute_dtype;  // RT_BF16 or RT_F32: activations and float weights
  int32_t kv_dtype;       // of the KV pool: RT_BF16, RT_F32 or RT_I8
  int32_t tied_embeddings;
  int32_t num_threads;
  int32_t level;  // RtLevel
  float rms_eps;
  float attention_scale;
};

// One step over B ragged rows with T new tokens; the arrays are those of ForwardBatch.
struct RtStep {
  int32_t num_rows, num_tokens;
  const int64_t* input_ids;       // [T]
  const int64_t* positions;       // [T], consecutive within a row, the last one kv_len - 1
  const int64_t* out_slots;       // [T]
  const int32_t* cu_query_lens;   // [B + 1]
  const int32_t* kv_lens;         // [B]
  const int64_t* table_rows;      // [B]
  const int32_t* slot_table;      // [R, slot_table_stride]
  int64_t slot_table_rows, slot_table_stride;
  // [num_layers, num_slots, num_kv_heads, head_dim]; with RT_I8 head_dim + 4 bytes, the last four of
  // them an f32 scale.
  void* k_pool;
  void* v_pool;
  int64_t num_slots;
  int64_t kv_layer_stride, kv_slot_stride;  // in elements (RT_I8: bytes); heads are contiguous
  int32_t share_prefixes;                   // read equal prefixes of several rows once (same bits)
  int32_t num_logit_tokens;
  const int32_t* logit_tokens;  // [L] indices into T
  float* logits;                // [L, logits_stride] or null
  int64_t logits_stride;
  int32_t* argmax;     // [L] or null; ties go to the lowest id
  float* hidden_out;   // [L, hidden] after the final norm, or null
  // [L] bitmasks of ceil(vocab / 32) words, each null where every id is legal; or null. With
  // logits, a row whose mask leaves few ids is filled at those alone (one alone: with 0), and rows
  // change places: logit_rows [L] receives the row of each logit token.
  const uint32_t* const* allowed_ids;
  int32_t* logit_rows;
};

// What rt_sample does with a row of logits.
enum RtSampleTask : int32_t {
  RT_GREEDY = 0,  // the largest logit, after the changes
  RT_DRAW = 1,    // a draw at the place that (seed, position) hash to
  RT_SCORE = 2,   // no token: log-probabilities of token_id as given
};

// One row: changes in the order of the fields, cuts, draw, and log-probabilities of the logits as
// they came in. Pointers may be null where their count is 0.
struct RtSampleRow {
  int64_t seed, position;
  const uint32_t* allowed_ids;  // [ceil(vocab / 32)] bits, or null: all are
  const int32_t* prompt_ids;    // repetition penalty: distinct ids of prompt and output
  const int32_t* output_ids;    // frequency and presence penalties: the output alone
  const int32_t* bias_ids;
  const float* biases;
  const int32_t* suppressed_ids;
  const int32_t* score_ids;
  float* score_logprobs;  // [num_score_ids]
  int32_t* top_ids;       // [num_top], the likeliest first
  float* top_logprobs;
  double top_p, min_p;
  float temperature, repetition_penalty, frequency_penalty, presence_penalty;
  int32_t top_k;  // 0: the whole vocabulary
  int32_t num_prompt_ids, num_output_ids, num_biases, num_suppressed_ids, num_score_ids, num_top;
  int32_t task;  // RtSampleTask
  int32_t wants_logprobs;
  int32_t token_id;  // -1 where a logit that counts is NaN
  float logprob;     // of token_id
};

struct RtModel;

RT_API const char* rt_last_error();
RT_API int32_t rt_best_level();
RT_API RtModel* rt_model_create(const RtConfig* config);
RT_API void rt_model_free(RtModel* model);
RT_API int32_t rt_model_level(const RtModel* model);
RT_API int64_t rt_model_weight_bytes(const RtModel* model);
RT_API int32_t rt_set_tensor(RtModel* model, int32_t tensor, int32_t layer, const void* data,
                             int32_t dtype, int64_t rows, int64_t cols, int32_t weight_format);
RT_API int32_t rt_finalize(RtModel* model);
RT_API int32_t rt_step(RtModel* model, const RtStep* step);
// Row i of logits [num_rows, stride] belongs to rows[i]; the logits are as before afterwards.
RT_API int32_t rt_sample(RtModel* model, float* logits, int64_t stride, RtSampleRow* rows,
                         int32_t num_rows);
// out[m, n] = sum_k x[m, k] * w[n, k] through the engine's own kernels; for tests and benchmarks.
RT_API int32_t rt_linear(RtModel* model, int32_t tensor, int32_t layer, const float* x, int64_t m,
                         float* out);
// Row-wise over f32 logits: log of the sum of exponentials, and optionally the arg-max.
RT_API int32_t rt_logits_stats(RtModel* model, const float* logits, int64_t rows, int64_t cols,
                               int64_t stride, float* log_sum_exp, int32_t* argmax);
// This machine's read bandwidth (bytes a second, from memory) and peak arithmetic (operations a
// second, from registers) with the model's threads and instruction level, best of some short runs.
RT_API int32_t rt_measure_limits(RtModel* model, double* read_bandwidth, double* peak_flops);
