// One step: every member of the team walks the same list of phases, with a barrier after each.
#include <algorithm>
#include <climits>
#include <cmath>
#include <stdexcept>
#include <string>

#include "model.h"
#include "packing.h"

namespace rt {
namespace {

// Tokens that go through all layers together. Weights are read from memory once for each such chunk,
// activations mostly live in L2 (2 MiB): of 256 and 512 the larger was faster by 4-10 %.
constexpr int kChunkTokens = 512;

// Up to this many tokens every member normalises all rows for itself: cheaper than a barrier.
constexpr int kOwnNormTokens = 2;

void require(bool ok, const char* text) {
  if (!ok) throw std::invalid_argument(text);
}

// Everything that could make a kernel read or write outside the caller's arrays, but for the
// contents of the slot table, which are the memory owner's promise.
void check_step(const RtModel& model, const RtStep& s) {
  const RtConfig& c = model.config;
  require(model.finalized, "rt_finalize was not called");
  require(s.num_rows >= 0 && s.num_tokens >= 0 && s.num_logit_tokens >= 0, "negative size");
  require(s.num_rows == 0 ? s.num_tokens == 0
                          : s.cu_query_lens[0] == 0 && s.cu_query_lens[s.num_rows] == s.num_tokens,
          "cu_query_lens does not cover the tokens");
  for (int b = 0; b < s.num_rows; ++b) {
    const int n = s.cu_query_lens[b + 1] - s.cu_query_lens[b];
    require(n >= 0 && n <= s.kv_lens[b] && s.kv_lens[b] <= s.slot_table_stride,
            "a row's lengths do not fit each other or the slot table");
    require(s.table_rows[b] >= 0 && s.table_rows[b] < s.slot_table_rows, "table row out of range");
    for (int i = 0; i < n; ++i)
      require(s.positions[s.cu_query_lens[b] + i] == s.kv_lens[b] - n + i,
              "positions are not the last ones of the row");
  }
  for (int t = 0; t < s.num_tokens; ++t) {
    require(s.input_ids[t] >= 0 && s.input_ids[t] < c.vocab_size, "token id out of range");
    require(s.positions[t] < c.max_positions, "position beyond the rope tables");
    require(s.out_slots[t] >= 0 && s.out_slots[t] < s.num_slots, "slot out of range");
  }
  for (int i = 0; i < s.num_logit_tokens; ++i)
    require(s.logit_tokens[i] >= 0 && s.logit_tokens[i] < s.num_tokens, "logit token out of range");
  for (int i = 1; i < s.num_logit_tokens; ++i)
    require(s.logit_tokens[i] > s.logit_tokens[i - 1], "logit tokens must ascend");
}

// Tokens [begin, end) of a step as a step of its own: rows that end earlier are left out, a row that
// goes on is cut short. Tokens of a row stay in order, so their keys are in the pool when needed.
struct StepChunk {
  StepChunk(const RtStep& whole, int begin, int end, int64_t hidden_size);

  RtStep step;
  std::vector<int32_t> cu_query_lens, kv_lens, logit_tokens;
  std::vector<int64_t> table_rows;
};

StepChunk::StepChunk(const RtStep& whole, int begin, int end, int64_t hidden_size)
    : step(whole) {
  if (begin == 0 && end == whole.num_tokens) return;
  cu_query_lens.push_back(0);
  for (int b = 0; b < whole.num_rows; ++b) {
    const int row_end = whole.cu_query_lens[b + 1];
    const int first = std::max(begin, whole.cu_query_lens[b]), last = std::min(end, row_end);
    if (first >= last) continue;
    cu_query_lens.push_back(last - begin);
    kv_lens.push_back(whole.kv_lens[b] - (row_end - last));
    table_rows.push_back(whole.table_rows[b]);
  }
  step.num_rows = static_cast<int>(kv_lens.size());
  step.num_tokens = end - begin;
  step.input_ids += begin;
  step.positions += begin;
  step.out_slots += begin;
  step.cu_query_lens = cu_query_lens.data();
  step.kv_lens = kv_lens.data();
  step.table_rows = table_rows.data();
  int first = 0;
  while (first < whole.num_logit_tokens && whole.logit_tokens[first] < begin) ++first;
  int last = first;
  while (last < whole.num_logit_tokens && whole.logit_tokens[last] < end)
    logit_tokens.push_back(whole.logit_tokens[last++] - begin);
  step.num_logit_tokens = last - first;
  step.logit_tokens = logit_tokens.data();
  if (step.logits != nullptr) step.logits += first * step.logits_stride;
  if (step.argmax != nullptr) step.argmax += first;
  if (step.hidden_out != nullptr) step.hidden_out += first * hidden_size;
}

class StepRun {
 public:
  StepRun(RtModel& model, const RtStep& step)
      : m_(model), c_(model.config), s_(step), w_(model.workspace) {}

  void prepare();
  void run(int member);

 private:
  template <class Body>
  void for_rows(int count, int chunk, Body body) {
    for (int u = m_.pool.claim(); u * chunk < count; u = m_.pool.claim())
      for (int i = u * chunk; i < std::min(count, (u + 1) * chunk); ++i) body(i);
    m_.pool.barrier();
  }
  // The normalised residual rows as this member reads them.
  const Activation& normalise(const std::vector<float>& weight, float* row, int member);
  void linear(const LinearArgs& args, ThreadScratch& scratch) {
    run_linear(m_, args, scratch);
    m_.pool.barrier();
  }
  void attention(int layer, const Layer& l, const Activation& in, ThreadScratch& scratch);
  void mlp(const Layer& l, const Activation& in, ThreadScratch& scratch);
  void head(float* row, ThreadScratch& scratch, int member);
  void reduce_argmax();

  RtModel& m_;
  const RtConfig& c_;
  const RtStep& s_;
  Workspace& w_;
  int chunk_ = 1;
  // The output passes through f32 rows: it is quantised, or needs padding.
  bool attention_rows_ = false, mlp_rows_ = false;
};

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
  w_.residual.reserve(tokens * c_.hidden_size * 4);
  w_.qkv.reserve(tokens * qkv_width * 4);
  w_.q.reserve(tokens * c_.num_heads * m_.q_stride() * (m_.is_f32() ? 4 : 2));
  uint32_t in = 0, attn = 0, mlp = 0;
  for (const Layer& l : m_.layers) {
    in |= formats_of({&l.q, &l.k, &l.v, &l.gate});
    attn |= formats_of({&l.o});
    mlp |= formats_of({&l.down});
  }
  const int wide = m_.kernels->wide_rows;
  if (t <= kOwnNormTokens) {
    w_.own_in.resize(static_cast<size_t>(n_threads));
    for (Workspace::ActivationMemory& own : w_.own_in) own.reserve(t, c_.hidden_size, in, wide);
  } else {
    w_.hidden_in.reserve(t, c_.hidden_size, in, wide);
  }
  w_.attention_out.reserve(t, m_.q_width(), attn, wide);
  w_.mlp_in.reserve(t, c_.intermediate_size, mlp, wide);
  w_.head_in.reserve(s_.num_logit_tokens, c_.hidden_size, formats_of({&m_.head()}), wide);
  const int widest = static_cast<int>(
      round_up(std::max({c_.hidden_size, c_.intermediate_size, m_.q_width()}), 64));
  w_.rows.reserve(tokens * static_cast<size_t>(widest) * 4);
  // Rows that do not fill whole blocks of 32 also go through write_row, which zeroes the rest.
  attention_rows_ = attn != kActBf16 || m_.q_width() % kKBlock != 0;
  mlp_rows_ = (mlp & (kActQ8 | kActRowQ8)) != 0 ||
              (mlp == kActBf16 && c_.intermediate_size % kKBlock != 0);

  w_.plan.build(s_, c_.num_heads, c_.num_kv_heads, m_.q_stride(), n_threads,
                m_.kernels->splits_attention && !m_.is_f32());
  const size_t partial_heads = static_cast<size_t>(w_.plan.num_partials) * c_.num_heads;
  w_.partials.reserve((partial_heads * (c_.head_dim + 2) + 64) * 4);

  w_.thread_rows.resize(n_threads);
  w_.thread_attention.resize(n_threads);
  w_.thread_best.resize(n_threads);
  w_.reserve_scratch(n_threads, widest);
  for (int i = 0; i < n_threads; ++i) {
    w_.thread_rows[i].reserve(static_cast<size_t>(widest) * 4);
    w_.thread_attention[i].reserve(attention_scratch_sizes(m_.q_stride()).total);
    w_.thread_best[i].assign(s_.num_logit_tokens, Best{-INFINITY, INT_MAX});
    w_.scratch[i]->attention = w_.thread_attention[i].as<uint8_t>();
    w_.scratch[i]->best = w_.thread_best[i].data();
  }
}

const Activation& StepRun::normalise(const std::vector<float>& weight, float* row, int member) {
  const float* residual = w_.residual.as<float>();
  const bool alone = s_.num_tokens <= kOwnNormTokens;
  const Activation& out = alone ? w_.own_in[member].view : w_.hidden_in.view;
  auto body = [&](int t) {
    m_.kernels->rms_norm(residual + static_cast<int64_t>(t) * c_.hidden_size, weight.data(),
                         c_.hidden_size, c_.rms_eps, row);
    m_.kernels->write_row(out, t, row);
  };
  if (!alone) {
    for_rows(s_.num_tokens, chunk_, body);
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
  for_rows(s_.num_tokens, chunk_, [&](int t) {
    unpack_row(m_.embedding, s_.input_ids[t], residual + static_cast<int64_t>(t) * c_.hidden_size);
  });
  for (int i = 0; i < c_.num_layers; ++i) {
    const Layer& l = m_.layers[i];
    attention(i, l, normalise(l.attn_norm, row, member), scratch);
    mlp(l, normalise(l.mlp_norm, row, member), scratch);
  }
  head(row, scratch, member);
  m_.kernels->leave(scratch);
}

const float* bias_of(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

void StepRun::attention(int layer, const Layer& l, const Activation& in,
                        ThreadScratch& scratch) {
  const int d = c_.head_dim, width = m_.q_width() + 2 * m_.kv_width(), q_stride = m_.q_stride();
  float* qkv = w_.qkv.as<float>();
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
  args.input = &in;
  args.m = s_.num_tokens;
  args.out = qkv;
  args.out_stride = width;
  linear(args, scratch);

  const RopeArgs rope = {m_.rope_cos.data(), m_.rope_sin.data(), bias_of(l.q_norm),
                         bias_of(l.k_norm), c_.num_heads, c_.num_kv_heads, d, c_.rotary_dim,
                         q_stride, m_.is_f32(), c_.rms_eps};
  const size_t item = m_.is_f32() ? 4 : 2;
  char* k_pool = static_cast<char*>(s_.k_pool) + item * layer * s_.kv_layer_stride;
  char* v_pool = static_cast<char*>(s_.v_pool) + item * layer * s_.kv_layer_stride;
  char* q = w_.q.as<char>();
  for_rows(s_.num_tokens, chunk_, [&](int t) {
    const size_t slot = item * s_.out_slots[t] * s_.kv_slot_stride;
    m_.kernels->rope_and_store(rope, qkv + static_cast<int64_t>(t) * width, s_.positions[t],
                               q + item * t * c_.num_heads * q_stride, k_pool + slot, v_pool + slot);
  });

  const Activation& out = w_.attention_out.view;
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
  att.scale = c_.attention_scale;
  att.out_activation = &out;
  att.out_rows = attention_rows_ ? w_.rows.as<float>() : nullptr;
  att.partial_o = partials;
  att.partial_max = partials + partial_heads * d;
  att.partial_sum = att.partial_max + partial_heads;
  for (int u = m_.pool.claim(); u < w_.plan.num_units; u = m_.pool.claim())
    m_.kernels->attention_unit(att, u, scratch);
  m_.pool.barrier();
  if (!w_.plan.merges.empty())
    for_rows(static_cast<int>(w_.plan.merges.size()), 1,
             [&](int u) { m_.kernels->attention_merge(att, u); });
  if (attention_rows_)
    for_rows(s_.num_tokens, chunk_, [&](int t) {
      m_.kernels->write_row(out, t, att.out_rows + static_cast<int64_t>(t) * m_.q_width());
    });

  LinearArgs project;
  project.weight[0] = &l.o;
  project.bias[0] = bias_of(l.o_bias);
  project.num_parts = 1;
  project.input = &out;
  project.m = s_.num_tokens;
  project.epilogue = Epilogue::kAdd;
  project.out = w_.residual.as<float>();
  project.out_stride = c_.hidden_size;
  linear(project, scratch);
}

void StepRun::mlp(const Layer& l, const Activation& in, ThreadScratch& scratch) {
  const Activation& act = w_.mlp_in.view;
  LinearArgs args;
  args.weight[0] = &l.gate;
  args.weight[1] = &l.up;
  args.num_parts = 2;
  args.input = &in;
  args.m = s_.num_tokens;
  args.epilogue = mlp_rows_ ? Epilogue::kSiluMulF32 : Epilogue::kSiluMul;
  args.out = w_.rows.as<float>();
  args.out_stride = round_up(c_.intermediate_size, 16);
  args.out_activation = &act;
  linear(args, scratch);
  if (mlp_rows_)
    for_rows(s_.num_tokens, chunk_, [&](int t) {
      m_.kernels->write_row(act, t, args.out + t * args.out_stride);
    });

  LinearArgs down;
  down.weight[0] = &l.down;
  down.num_parts = 1;
  down.input = &act;
  down.m = s_.num_tokens;
  down.epilogue = Epilogue::kAdd;
  down.out = w_.residual.as<float>();
  down.out_stride = c_.hidden_size;
  linear(down, scratch);
}

void StepRun::head(float* row, ThreadScratch& scratch, int member) {
  const float* residual = w_.residual.as<float>();
  const int count = s_.num_logit_tokens;
  for_rows(count, 1, [&](int i) {
    m_.kernels->rms_norm(residual + static_cast<int64_t>(s_.logit_tokens[i]) * c_.hidden_size,
                         m_.final_norm.data(), c_.hidden_size, c_.rms_eps, row);
    m_.kernels->write_row(w_.head_in.view, i, row);
    if (s_.hidden_out != nullptr)
      std::copy(row, row + c_.hidden_size, s_.hidden_out + static_cast<int64_t>(i) * c_.hidden_size);
  });
  if (count == 0 || (s_.logits == nullptr && s_.argmax == nullptr)) return;
  LinearArgs args;
  args.weight[0] = &m_.head();
  args.num_parts = 1;
  args.input = &w_.head_in.view;
  args.m = count;
  args.epilogue = s_.logits != nullptr ? Epilogue::kStore : Epilogue::kArgmax;
  args.out = s_.logits;
  args.out_stride = s_.logits_stride;
  linear(args, scratch);
  if (s_.argmax == nullptr) return;
  if (s_.logits == nullptr) {
    if (member == 0) reduce_argmax();
    return;
  }
  for_rows(count, 1, [&](int i) {
    m_.kernels->logits_stats(s_.logits + i * s_.logits_stride, c_.vocab_size, nullptr, s_.argmax + i);
  });
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

void Workspace::reserve_scratch(int n_threads, int64_t widest) {
  thread_panels.resize(static_cast<size_t>(n_threads));
  while (static_cast<int>(scratch.size()) < n_threads) scratch.push_back(new ThreadScratch());
  for (int i = 0; i < n_threads; ++i) {
    thread_panels[i].reserve(2 * widened_panel_bytes(widest));
    scratch[i]->panels = thread_panels[i].as<uint8_t>();
  }
}

void Workspace::ActivationMemory::reserve(int m, int k, uint32_t formats, int wide_rows) {
  const int rows = std::max(m, 1);
  if ((formats & kActQ8) && rows >= wide_rows) formats |= kActWide;
  view.formats = formats;
  view.k = k;
  view.k_padded = static_cast<int>(round_up(k, kKBlock));
  view.tile_rows = rows < kTileRows ? rows : kTileRows;
  const size_t padded_rows = static_cast<size_t>(round_up(rows, view.tile_rows));
  const size_t elements = padded_rows * static_cast<size_t>(view.k_padded);
  const size_t blocks = elements / kKBlock;
  if (formats & kActBf16) bf16.reserve(elements * 2 + 4096);
  if (formats & kActF32) f32.reserve(elements * 4);
  if (formats & kActQ8) {
    q8.reserve(elements + 4096);
    q8_scale.reserve(blocks * 4 + 4096);
    q8_sum.reserve(blocks * 4 + 4096);
    q8_half_sum.reserve(blocks * 8 + 4096);
  }
  if (formats & kActWide) wide.reserve(elements * 2 + 4096);
  if (formats & kActRowQ8) {
    row_q8.reserve(padded_rows * static_cast<size_t>(round_up(k, 64)) + 4096);
    row_scale.reserve(padded_rows * 4);
  }
  view.bf16 = bf16.as<uint16_t>();
  view.f32 = f32.as<float>();
  view.q8 = q8.as<int8_t>();
  view.q8_scale = q8_scale.as<float>();
  view.q8_sum = q8_sum.as<float>();
  view.q8_half_sum = q8_half_sum.as<float>();
  view.wide = wide.as<uint16_t>();
  view.row_q8 = row_q8.as<int8_t>();
  view.row_scale = row_scale.as<float>();
}

void run_linear(RtModel& model, const LinearArgs& args, ThreadScratch& scratch) {
  const LinearPlan plan = plan_linear(args, model.pool.size());
  for (int u = model.pool.claim(); u < plan.num_units; u = model.pool.claim())
    model.kernels->linear_unit(args, plan.unit(args, u), scratch);
}

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
  }
}

void run_sampling(RtModel& model, float* logits, int64_t stride, RtSampleRow* rows, int num_rows) {
  const int32_t vocab_size = model.config.vocab_size;
  require(num_rows >= 0 && stride >= vocab_size, "rows of logits are shorter than the vocabulary");
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

void run_single_linear(RtModel& model, const PackedWeight& weight, const float* x, int64_t m,
                       float* out) {
  if (m == 0) return;
  Workspace::ActivationMemory& input = model.workspace.single_in;
  const int rows = static_cast<int>(m);
  input.reserve(rows, weight.k, activation_format(weight.kind), model.kernels->wide_rows);
  LinearArgs args;
  args.weight[0] = &weight;
  args.num_parts = 1;
  args.input = &input.view;
  args.m = rows;
  args.out = out;
  args.out_stride = weight.n;
  Workspace& w = model.workspace;
  w.reserve_scratch(model.pool.size(), weight.k);
  model.pool.run([&](int member) {
    ThreadScratch& scratch = *w.scratch[member];
    model.kernels->enter(scratch);
    for (int i = model.pool.claim(); i < rows; i = model.pool.claim())
      model.kernels->write_row(input.view, i, x + static_cast<int64_t>(i) * weight.k);
    model.pool.barrier();
    run_linear(model, args, scratch);
    model.kernels->leave(scratch);
  });
}

}  // namespace rt
