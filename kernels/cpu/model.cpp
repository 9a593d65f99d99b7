#include "model.h"

#include <stdexcept>
#include <string>

#include "cpu_features.h"
#include "gguf_blocks.h"
#include "packing.h"

namespace rt {
namespace {

const KernelTable& table_of(int32_t level) {
  switch (level) {
#if defined(__x86_64__)
    case RT_LEVEL_AMX: return amx_table();
    case RT_LEVEL_AVX512_BF16: return avx512bf16_table();
    case RT_LEVEL_AVX512: return avx512_table();
    case RT_LEVEL_AVX2: return avx2_table();
#endif
    default: return scalar_table();
  }
}

int32_t chosen_level(int32_t asked) {
  const int32_t best = best_level();
  if (asked > best)
    throw std::invalid_argument("instruction level " + std::to_string(asked) +
                                " is above what this processor has (" + std::to_string(best) + ")");
  return asked == RT_LEVEL_AUTO ? best : asked;
}

void require(bool ok, const std::string& text) {
  if (!ok) throw std::invalid_argument(text);
}

const RtConfig& checked(const RtConfig& c) {
  require(c.num_layers > 0 && c.hidden_size > 0 && c.intermediate_size > 0 && c.vocab_size > 0,
          "sizes must be positive");
  require(c.num_heads > 0 && c.num_kv_heads > 0 && c.num_heads % c.num_kv_heads == 0,
          "num_heads must be a multiple of num_kv_heads");
  require(c.compute_dtype == RT_BF16 || c.compute_dtype == RT_F32,
          "compute dtype must be bf16 or f32");
  require(c.kv_dtype == RT_BF16 || c.kv_dtype == RT_F32 || c.kv_dtype == RT_I8,
          "kv dtype must be bf16, f32 or 8-bit");
  require(c.head_dim > 0 && c.head_dim <= kMaxHeadDim, "head_dim must be at most 256");
  require(c.compute_dtype == RT_F32 || c.head_dim % 16 == 0,
          "bf16 needs a head_dim that is a multiple of 16");
  require(c.rotary_dim % 2 == 0 && c.rotary_dim <= c.head_dim, "rotary_dim must be even");
  require(c.num_threads > 0 && c.num_threads <= 256, "num_threads must be 1..256");
  return c;
}

struct Shape {
  int64_t rows, cols;
};

Shape shape_of(const RtModel& model, int32_t tensor) {
  const RtConfig& c = model.config;
  switch (tensor) {
    case RT_EMBEDDING:
    case RT_LM_HEAD: return {c.vocab_size, c.hidden_size};
    case RT_ROPE_COS:
    case RT_ROPE_SIN: return {c.max_positions, c.rotary_dim / 2};
    case RT_Q: return {model.q_width(), c.hidden_size};
    case RT_K:
    case RT_V: return {model.kv_width(), c.hidden_size};
    case RT_O: return {c.hidden_size, model.q_width()};
    case RT_GATE:
    case RT_UP: return {c.intermediate_size, c.hidden_size};
    case RT_DOWN: return {c.hidden_size, c.intermediate_size};
    case RT_Q_BIAS: return {1, model.q_width()};
    case RT_K_BIAS:
    case RT_V_BIAS: return {1, model.kv_width()};
    case RT_Q_NORM:
    case RT_K_NORM: return {1, c.head_dim};
    default: return {1, c.hidden_size};
  }
}

}  // namespace

Workspace::~Workspace() {
  for (ThreadScratch* s : scratch) delete s;
}

void set_tensor(RtModel& model, int32_t tensor, int32_t layer, const void* data, int32_t dtype,
                int64_t rows, int64_t cols, int32_t weight_format) {
  const std::string name = "tensor " + std::to_string(tensor) + " of layer " + std::to_string(layer);
  require(tensor < RT_ATTN_NORM || (layer >= 0 && layer < model.config.num_layers),
          name + ": no such layer");
  const Shape shape = shape_of(model, tensor);
  require(rows == shape.rows && cols == shape.cols,
          name + ": shape [" + std::to_string(rows) + ", " + std::to_string(cols) + "], expected [" +
              std::to_string(shape.rows) + ", " + std::to_string(shape.cols) + "]");
  if (std::vector<float>* values = model.vector(tensor, layer)) {
    require(dtype == RT_F32, name + ": must be f32");
    const float* source = static_cast<const float*>(data);
    values->assign(source, source + rows * cols);
    return;
  }
  PackedWeight* weight = model.matrix(tensor, layer);
  require(weight != nullptr, name + ": unknown tensor");
  const WeightKind kind = weight_kind(dtype, weight_format, model.config.compute_dtype);
  require(kind != WeightKind::kNone, name + ": dtype " + std::to_string(dtype) + " with format " +
                                         std::to_string(weight_format) + " is not supported");
  require(cols % block_values(dtype) == 0,
          name + ": row length is not a multiple of the block size");
  *weight = pack_weight(data, dtype, rows, cols, kind, model.pool, model.arena);
}

void finalize(RtModel& model) {
  const RtConfig& c = model.config;
  require(model.embedding.n > 0, "embedding is missing");
  require(c.tied_embeddings || model.lm_head.n > 0, "lm_head is missing");
  require(!model.final_norm.empty(), "final norm is missing");
  require(c.rotary_dim == 0 || (!model.rope_cos.empty() && !model.rope_sin.empty()),
          "rope tables are missing");
  for (int i = 0; i < c.num_layers; ++i) {
    const Layer& l = model.layers[i];
    const std::string name = "layer " + std::to_string(i);
    for (const PackedWeight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      require(w->n > 0, name + ": a projection is missing");
    require(!l.attn_norm.empty() && !l.mlp_norm.empty(), name + ": a norm is missing");
    require(l.gate.kind == l.up.kind, name + ": gate and up must have one format");
  }
  model.finalized = true;
}

}  // namespace rt

RtModel::RtModel(const RtConfig& c)
    : config(rt::checked(c)),
      level(rt::chosen_level(c.level)),
      kernels(&rt::table_of(level)),
      pool(c.num_threads),
      layers(static_cast<size_t>(c.num_layers)) {}

rt::PackedWeight* RtModel::matrix(int32_t tensor, int32_t layer) {
  if (tensor == RT_EMBEDDING) return &embedding;
  if (tensor == RT_LM_HEAD) return &lm_head;
  if (layer < 0 || layer >= config.num_layers) return nullptr;
  rt::Layer& l = layers[static_cast<size_t>(layer)];
  switch (tensor) {
    case RT_Q: return &l.q;
    case RT_K: return &l.k;
    case RT_V: return &l.v;
    case RT_O: return &l.o;
    case RT_GATE: return &l.gate;
    case RT_UP: return &l.up;
    case RT_DOWN: return &l.down;
    default: return nullptr;
  }
}

std::vector<float>* RtModel::vector(int32_t tensor, int32_t layer) {
  if (tensor == RT_FINAL_NORM) return &final_norm;
  if (tensor == RT_ROPE_COS) return &rope_cos;
  if (tensor == RT_ROPE_SIN) return &rope_sin;
  if (layer < 0 || layer >= config.num_layers) return nullptr;
  rt::Layer& l = layers[static_cast<size_t>(layer)];
  switch (tensor) {
    case RT_ATTN_NORM: return &l.attn_norm;
    case RT_Q_BIAS: return &l.q_bias;
    case RT_K_BIAS: return &l.k_bias;
    case RT_V_BIAS: return &l.v_bias;
    case RT_Q_NORM: return &l.q_norm;
    case RT_K_NORM: return &l.k_norm;
    case RT_O_BIAS: return &l.o_bias;
    case RT_MLP_NORM: return &l.mlp_norm;
    default: return nullptr;
  }
}
