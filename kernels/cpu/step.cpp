// One step: every member of the team walks the same list of phases, with a barrier after each.
#include <algorithm>
#include <climits>
#include <cmath>
#include <stdexcept>

#include "model.h"
#include "packing.h"
#include "step_chunk.h"

namespace rt {
namespace {

// Tokens that go through all layers together. Weights are read from memory once for each such chunk,
// activations mostly live in L2 (2 MiB): of 256 and 512 the larger was faster by 4-10 %.
constexpr int kChunkTokens = 512;

// Up to this many tokens every member normalises, merges and quantises all rows for itself: cheaper
// than a barrier.
constexpr int kOwnRowTokens = 2;

// Of the next product's weights, what a member that waits for others may bring in.
constexpr size_t kAheadBytes = 24 << 10;

class StepRun {
 public:
  StepRun(RtModel& model, const RtStep& step)
      : m_(model), c_(model.config), s_(step), w_(model.workspace) {}

  void prepare();
  void run(int member);

 private:
  template <class Body>
  void for_rows(int count, int chunk, const Ahead& ahead, Body body) {
    for (int u = m_.pool.claim(); u * chunk < count; u = m_.pool.claim())
      for (int i = u * chunk; i < std::min(count, (u + 1) * chunk); ++i) body(i);
    m_.pool.barrier(ahead);
  }
  void reserve_activations();
  void plan_products();
  // Where a member starts to read the weights of a product.
  Ahead first_weights(const LinearPlan& plan, const LinearArgs& args, int member) const;
  // The normalised residual rows as this member reads them; the same for rows of attention, from
  // its parts, and of silu * up.
  const Activation& normalise(const std::vector<float>& weight, float* row, int member);
  const Activation& merged(AttentionArgs args, const Ahead& next, float* row, int member);
  const Activation& gated(const float* rows, int64_t stride, const Ahead& next, int member);
  void linear(const LinearArgs& args, const LinearPlan& plan, const Ahead& next, int member) {
    run_linear(m_, args, plan, member, *w_.scratch[member]);
    m_.pool.barrier(next);
  }
  LinearArgs qkv_args(const Layer& l) const;
  LinearArgs project_args(const Layer& l) const;
  LinearArgs gate_up_args(const Layer& l) const;
  LinearArgs down_args(const Layer& l) const;
  LinearArgs head_args() const;
  void attention(int layer, const Layer& l, const Activation& in, float* row, int member);
  void mlp(int layer, const Layer& l, const Activation& in, int member);
  void head(float* row, int member);
  void few_logits(LinearArgs args, int member);
  void reduce_argmax();

  RtModel& m_;
  const RtConfig& c_;
  const RtStep& s_;
  Workspace& w_;
  int chunk_ = 1;
  bool own_rows_ = false;  // see kOwnRowTokens
  LinearPlan qkv_plan_, project_plan_, gate_up_plan_, down_plan_, head_plan_;
  // The output passes through f32 rows: it is quantised, or needs padding.
  bool attention_rows_ = false, mlp_rows_ = false;
};

const float* bias_of(const std::vector<float>& bias) {
  return bias.empty() ? nullptr : bias.data();
}

PackedWeight one_panel(PackedWeight w, int panel) {
  w.data += static_cast<size_t>(panel) * w.panel_bytes;
  if (w.scales != nullptr) w.scales += panel * kPanel;
  w.n = std::min(kPanel, w.n - panel * kPanel);
  w.num_panels = 1;
  return w;
}

uint32_t formats_of(std::initializer_list<const PackedWeight*> weights) {
  uint32_t formats = 0;
  for (const PackedWeight* w : weights) formats |= activation_format(w->kind);
  return formats;
}

void StepRun::prepare() {
  const int t = s_.num_tokens, n_threads = m_.pool.size();
  const int qkv_width = m_.q_width() + 2 * m_.kv_width();
  const size_t tokens = static_cast<size_t>(round_up(std::max(t, 1), 32));
  chunk_ = std::max(1, std::min(16, t / (n_threads * 4)));
  own_rows_ = t <= kOwnRowTokens;
  w_.residual.reserve(tokens * c_.hidden_size * 4);
  w_.qkv.reserve(tokens * qkv_width * 4);
  w_.q.reserve(tokens * c_.num_heads * m_.q_stride() * (m_.is_f32() ? 4 : 2));
  const int widest = static_cast<int>(
      round_up(std::max({c_.hidden_size, c_.intermediate_size, m_.q_width()}), 64));
  w_.rows.reserve(tokens * static_cast<size_t>(widest) * 4);
  w_.head_rows.build(s_, c_.vocab_size);
  reserve_activations();
  plan_products();

  w_.plan.build(s_, c_.num_heads, c_.num_kv_heads, m_.q_stride(), n_threads);
  const size_t partial_heads = static_cast<size_t>(w_.plan.num_partials) * c_.num_heads;
  w_.partials.reserve((partial_heads * (c_.head_dim + 2) + 64) * 4);

  w_.thread_rows.resize(n_threads);
  w_.thread_attention.resize(n_threads);
  w_.thread_columns.resize(n_threads);
  w_.thread_best.resize(n_threads);
  w_.reserve_scratch(n_threads, widest);
  for (int i = 0; i < n_threads; ++i) {
    w_.thread_rows[i].reserve(static_cast<size_t>(kOwnRowTokens * widest) * 4);
    w_.thread_attention[i].reserve(attention_scratch_sizes(m_.q_stride()).total);
    if (!w_.head_rows.units.empty())
      w_.thread_columns[i].reserve(static_cast<size_t>(s_.num_logit_tokens) * kPanel * 4);
    w_.thread_best[i].assign(s_.num_logit_tokens, Best{-INFINITY, INT_MAX});
    w_.scratch[i]->attention = w_.thread_attention[i].as<uint8_t>();
    w_.scratch[i]->best = w_.thread_best[i].data();
  }
}

void StepRun::reserve_activations() {
  uint32_t in = 0, attn = 0, mlp = 0;
  for (const Layer& l : m_.layers) {
    in |= formats_of({&l.q, &l.k, &l.v, &l.gate});
    attn |= formats_of({&l.o});
    mlp |= formats_of({&l.down});
  }
  const int wide = m_.kernels->wide_rows;
  auto reserve = [&](Workspace::ActivationMemory& shared,
                     std::vector<Workspace::ActivationMemory>& own, int k, uint32_t formats) {
    shared.reserve(s_.num_tokens, k, formats, wide);
    own.resize(static_cast<size_t>(m_.pool.size()));
    if (own_rows_)
      for (Workspace::ActivationMemory& one : own) one.reserve(s_.num_tokens, k, formats, wide);
  };
  reserve(w_.hidden_in, w_.own_in, c_.hidden_size, in);
  reserve(w_.attention_out, w_.own_attention, m_.q_width(), attn);
  reserve(w_.mlp_in, w_.own_mlp, c_.intermediate_size, mlp);
  w_.head_in.reserve(s_.num_logit_tokens, c_.hidden_size, formats_of({&m_.head()}), wide);
  // Rows that do not fill whole blocks of 32 also go through write_row, which zeroes the rest.
  attention_rows_ = attn != kActBf16 || m_.q_width() % kKBlock != 0;
  mlp_rows_ = (mlp & (kActQ8 | kActRowQ8)) != 0 ||
              (mlp == kActBf16 && c_.intermediate_size % kKBlock != 0);
}

// Layers have one shape, so the plans of the first serve all.
void StepRun::plan_products() {
  const Layer& l = m_.layers[0];
  qkv_plan_ = plan_linear(qkv_args(l), m_.pool.size());
  project_plan_ = plan_linear(project_args(l), m_.pool.size());
  gate_up_plan_ = plan_linear(gate_up_args(l), m_.pool.size());
  down_plan_ = plan_linear(down_args(l), m_.pool.size());
  head_plan_ = plan_linear(head_args(), m_.pool.size());
}

Ahead StepRun::first_weights(const LinearPlan& plan, const LinearArgs& args, int member) const {
  Ahead ahead;
  if (member >= plan.num_units) return ahead;
  const LinearUnit unit = plan.unit(args, member);
  const int parts = args.is_gated() ? 2 : 1;
  for (int i = 0; i < parts; ++i) {
    const PackedWeight& w = *args.weight[parts == 2 ? i : unit.part];
    const size_t bytes = w.panel_bytes * static_cast<size_t>(unit.num_panels);
    ahead.at[i] = w.panel(unit.first_panel);
    ahead.bytes[i] = std::min(bytes, kAheadBytes / static_cast<size_t>(parts));
  }
  return ahead;
}

const Activation& StepRun::normalise(const std::vector<float>& weight, float* row, int member) {
  const float* residual = w_.residual.as<float>();
  const Activation& out = own_rows_ ? w_.own_in[member].view : w_.hidden_in.view;
  auto body = [&](int t) {
    m_.kernels->rms_norm(residual + static_cast<int64_t>(t) * c_.hidden_size, weight.data(),
                         c_.hidden_size, c_.rms_eps, row);
    m_.kernels->write_row(out, t, row);
  };
  if (!own_rows_) {
    for_rows(s_.num_tokens, chunk_, {}, body);
  } else {
    for (int t = 0; t < s_.num_tokens; ++t) body(t);
  }
  return out;
}

const Activation& StepRun::merged(AttentionArgs args, const Ahead& next, float* row, int member) {
  const int merges = static_cast<int>(w_.plan.merges.size());
  const int64_t width = m_.q_width();
  if (own_rows_) {
    const Activation& own = w_.own_attention[member].view;
    args.out_activation = &own;
    if (attention_rows_) args.out_rows = row;
    for (int u = 0; u < merges; ++u) m_.kernels->attention_merge(args, u);
    if (attention_rows_)
      for (int t = 0; t < s_.num_tokens; ++t) m_.kernels->write_row(own, t, row + t * width);
    return own;
  }
  const Activation& out = *args.out_activation;
  if (merges > 0)
    for_rows(merges, 1, next, [&](int u) { m_.kernels->attention_merge(args, u); });
  if (attention_rows_)
    for_rows(s_.num_tokens, chunk_, next,
             [&](int t) { m_.kernels->write_row(out, t, args.out_rows + t * width); });
  return out;
}

const Activation& StepRun::gated(const float* rows, int64_t stride, const Ahead& next, int member) {
  const Activation& out = own_rows_ && mlp_rows_ ? w_.own_mlp[member].view : w_.mlp_in.view;
  if (!mlp_rows_) return out;
  auto body = [&](int t) { m_.kernels->write_row(out, t, rows + t * stride); };
  if (!own_rows_) {
    for_rows(s_.num_tokens, chunk_, next, body);
  } else {
    for (int t = 0; t < s_.num_tokens; ++t) body(t);
  }
  return out;
}

void StepRun::run(int member) {
  ThreadScratch& scratch = *w_.scratch[member];
  float* row = w_.thread_rows[member].as<float>();
  m_.kernels->enter(scratch);
  float* residual = w_.residual.as<float>();
  const Ahead first = first_weights(qkv_plan_, qkv_args(m_.layers[0]), member);
  for_rows(s_.num_tokens, chunk_, first, [&](int t) {
    unpack_row(m_.embedding, s_.input_ids[t], residual + static_cast<int64_t>(t) * c_.hidden_size);
  });
  for (int i = 0; i < c_.num_layers; ++i) {
    const Layer& l = m_.layers[i];
    attention(i, l, normalise(l.attn_norm, row, member), row, member);
    mlp(i, l, normalise(l.mlp_norm, row, member), member);
  }
  head(row, member);
  m_.kernels->leave(scratch);
}

LinearArgs StepRun::qkv_args(const Layer& l) const {
  LinearArgs args;
  args.weight[0] = &l.q;
  args.weight[1] = &l.k;
  args.weight[2] = &l.v;
  args.bias[0] = bias_of(l.q_bias);
  args.bias[1] = bias_of(l.k_bias);
  args.bias[2] = bias_of(l.v_bias);
  args.out_column[1] = m_.q_width();
  args.out_column[2] = m_.q_width() + m_.kv_width();
  args.num_parts = 3;
  args.m = s_.num_tokens;
  args.out = w_.qkv.as<float>();
  args.out_stride = m_.q_width() + 2 * m_.kv_width();
  return args;
}

LinearArgs StepRun::project_args(const Layer& l) const {
  LinearArgs args;
  args.weight[0] = &l.o;
  args.bias[0] = bias_of(l.o_bias);
  args.num_parts = 1;
  args.m = s_.num_tokens;
  args.epilogue = Epilogue::kAdd;
  args.out = w_.residual.as<float>();
  args.out_stride = c_.hidden_size;
  return args;
}

LinearArgs StepRun::gate_up_args(const Layer& l) const {
  LinearArgs args;
  args.weight[0] = &l.gate;
  args.weight[1] = &l.up;
  args.num_parts = 2;
  args.m = s_.num_tokens;
  args.epilogue = mlp_rows_ ? Epilogue::kSiluMulF32 : Epilogue::kSiluMul;
  args.out = w_.rows.as<float>();
  args.out_stride = round_up(c_.intermediate_size, 16);
  args.out_activation = &w_.mlp_in.view;
  return args;
}

LinearArgs StepRun::down_args(const Layer& l) const {
  LinearArgs args = project_args(l);
  args.weight[0] = &l.down;
  args.bias[0] = nullptr;
  return args;
}

LinearArgs StepRun::head_args() const {
  LinearArgs args;
  args.weight[0] = &m_.head();
  args.num_parts = 1;
  args.input = &w_.head_in.view;
  args.m = w_.head_rows.num_full;
  args.epilogue = s_.logits != nullptr ? Epilogue::kStore : Epilogue::kArgmax;
  args.out = s_.logits;
  args.out_stride = s_.logits_stride;
  return args;
}

void StepRun::attention(int layer, const Layer& l, const Activation& in, float* row, int member) {
  ThreadScratch& scratch = *w_.scratch[member];
  const int d = c_.head_dim, width = m_.q_width() + 2 * m_.kv_width(), q_stride = m_.q_stride();
  float* qkv = w_.qkv.as<float>();
  LinearArgs args = qkv_args(l);
  args.input = &in;
  linear(args, qkv_plan_, {}, member);

  const RopeArgs rope = {m_.rope_cos.data(), m_.rope_sin.data(), bias_of(l.q_norm),
                         bias_of(l.k_norm), c_.num_heads, c_.num_kv_heads, d, c_.rotary_dim,
                         q_stride, m_.is_f32(), c_.kv_dtype, c_.rms_eps};
  const size_t item = m_.is_f32() ? 4 : 2;
  const int64_t kv_item = kv_element_bytes(c_.kv_dtype);
  char* k_pool = static_cast<char*>(s_.k_pool) + kv_item * layer * s_.kv_layer_stride;
  char* v_pool = static_cast<char*>(s_.v_pool) + kv_item * layer * s_.kv_layer_stride;
  char* q = w_.q.as<char>();
  LinearArgs project = project_args(l);
  const Ahead next = first_weights(project_plan_, project, member);
  for_rows(s_.num_tokens, chunk_, next, [&](int t) {
    const int64_t slot = kv_item * s_.out_slots[t] * s_.kv_slot_stride;
    m_.kernels->rope_and_store(rope, qkv + static_cast<int64_t>(t) * width, s_.positions[t],
                               q + item * t * c_.num_heads * q_stride, k_pool + slot, v_pool + slot);
  });

  const size_t partial_heads = static_cast<size_t>(w_.plan.num_partials) * c_.num_heads;
  float* partials = w_.partials.as<float>();
  AttentionArgs att = {};
  att.step = &s_;
  att.plan = &w_.plan;
  att.q = q;
  att.k = k_pool;
  att.v = v_pool;
  att.num_heads = c_.num_heads;
  att.num_kv_heads = c_.num_kv_heads;
  att.head_dim = d;
  att.q_stride = q_stride;
  att.as_f32 = m_.is_f32();
  att.kv_dtype = c_.kv_dtype;
  att.kv_head_stride = kv_head_elements(c_.kv_dtype, d);
  att.scale = c_.attention_scale;
  att.out_activation = &w_.attention_out.view;
  att.out_rows = attention_rows_ ? w_.rows.as<float>() : nullptr;
  att.partial_o = partials;
  att.partial_max = partials + partial_heads * d;
  att.partial_sum = att.partial_max + partial_heads;
  for (int u = m_.pool.claim(); u < w_.plan.num_units; u = m_.pool.claim())
    m_.kernels->attention_unit(att, u, scratch);
  m_.pool.barrier(next);
  project.input = &merged(att, next, row, member);
  linear(project, project_plan_, first_weights(gate_up_plan_, gate_up_args(l), member), member);
}

void StepRun::mlp(int layer, const Layer& l, const Activation& in, int member) {
  LinearArgs args = gate_up_args(l), down = down_args(l);
  args.input = &in;
  Ahead next = first_weights(down_plan_, down, member);
  linear(args, gate_up_plan_, next, member);
  down.input = &gated(args.out, args.out_stride, next, member);
  if (layer + 1 < c_.num_layers)
    next = first_weights(qkv_plan_, qkv_args(m_.layers[layer + 1]), member);
  else
    next = first_weights(head_plan_, head_args(), member);
  linear(down, down_plan_, next, member);
}

void StepRun::head(float* row, int member) {
  const float* residual = w_.residual.as<float>();
  const int count = s_.num_logit_tokens;
  const LinearArgs args = head_args();
  for_rows(count, 1, first_weights(head_plan_, args, member), [&](int i) {
    m_.kernels->rms_norm(residual + static_cast<int64_t>(s_.logit_tokens[i]) * c_.hidden_size,
                         m_.final_norm.data(), c_.hidden_size, c_.rms_eps, row);
    m_.kernels->write_row(w_.head_in.view, w_.head_rows.place[static_cast<size_t>(i)], row);
    if (s_.hidden_out != nullptr)
      std::copy(row, row + c_.hidden_size, s_.hidden_out + static_cast<int64_t>(i) * c_.hidden_size);
  });
  if (count == 0 || (s_.logits == nullptr && s_.argmax == nullptr)) return;
  if (args.m > 0) linear(args, head_plan_, {}, member);
  if (!w_.head_rows.units.empty()) few_logits(args, member);
  if (s_.argmax == nullptr) return;
  if (s_.logits == nullptr) {
    if (member == 0) reduce_argmax();
    return;
  }
  for_rows(count, 1, {}, [&](int i) {
    m_.kernels->logits_stats(s_.logits + i * s_.logits_stride, c_.vocab_size, nullptr, s_.argmax + i);
  });
}

void StepRun::few_logits(LinearArgs args, int member) {
  const HeadRows& rows = w_.head_rows;
  const PackedWeight& head = m_.head();
  float* tile = w_.thread_columns[member].as<float>();  // [L, 16]
  const int count = static_cast<int>(rows.units.size());
  for (int u = m_.pool.claim(); u < count; u = m_.pool.claim()) {
    const HeadRows::Unit& unit = rows.units[static_cast<size_t>(u)];
    const PackedWeight panel = one_panel(head, unit.panel);
    args.weight[0] = &panel;
    args.out = tile;
    args.out_stride = kPanel;
    m_.kernels->linear_unit(args, {0, 0, 1, unit.row_begin, unit.row_end}, *w_.scratch[member]);
    for (int r = unit.row_begin; r < unit.row_end; ++r)
      for (uint32_t columns = rows.columns(r, unit.panel); columns != 0; columns &= columns - 1) {
        const int column = __builtin_ctz(columns), id = unit.panel * kPanel + column;
        if (id < c_.vocab_size) s_.logits[r * s_.logits_stride + id] = tile[r * kPanel + column];
      }
  }
  m_.pool.barrier();
}

void StepRun::reduce_argmax() {
  for (int i = 0; i < s_.num_logit_tokens; ++i) {
    Best best{-INFINITY, INT_MAX};
    for (const std::vector<Best>& per_thread : w_.thread_best) {
      const Best& b = per_thread[static_cast<size_t>(i)];
      if (b.value > best.value || (b.value == best.value && b.index < best.index)) best = b;
    }
    s_.argmax[i] = best.index == INT_MAX ? -1 : best.index;
  }
}

}  // namespace

void run_step(RtModel& model, const RtStep& step) {
  check_step(model, step);
  const int tokens = step.num_tokens;
  if (tokens == 0) return;
  const int chunks = (tokens + kChunkTokens - 1) / kChunkTokens;
  const int size = static_cast<int>(round_up((tokens + chunks - 1) / chunks, 32));
  for (int begin = 0; begin < tokens; begin += size) {
    StepChunk chunk(step, begin, std::min(tokens, begin + size), model.config.hidden_size);
    StepRun run(model, chunk.step);
    run.prepare();
    model.pool.run([&run](int member) { run.run(member); });
    if (step.allowed_ids == nullptr) continue;
    // A chunk counts from its own first row of logits.
    const int64_t before = chunk.step.logit_rows - step.logit_rows;
    for (int i = 0; i < chunk.step.num_logit_tokens; ++i)
      chunk.step.logit_rows[i] += static_cast<int32_t>(before);
  }
}

void run_sampling(RtModel& model, float* logits, int64_t stride, RtSampleRow* rows, int num_rows) {
  const int32_t vocab_size = model.config.vocab_size;
  if (num_rows < 0 || stride < vocab_size)
    throw std::invalid_argument("rows of logits are shorter than the vocabulary");
  for (int i = 0; i < num_rows; ++i) check_sample_row(rows[i], vocab_size);
  Workspace& w = model.workspace;
  w.sampling.resize(static_cast<size_t>(model.pool.size()));
  auto sample = [&](int i, int member) {
    sample_row(*model.kernels, w.sampling[static_cast<size_t>(member)], logits + i * stride,
               vocab_size, rows[i]);
  };
  if (num_rows <= 1) {  // not worth waking the team
    if (num_rows == 1) sample(0, 0);
    return;
  }
  model.pool.run([&](int member) {
    for (int i = model.pool.claim(); i < num_rows; i = model.pool.claim()) sample(i, member);
  });
}

}  // namespace rt
