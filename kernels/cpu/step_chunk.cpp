#include "step_chunk.h"

#include <algorithm>
#include <stdexcept>

namespace rt {
namespace {

void require(bool ok, const char* text) {
  if (!ok) throw std::invalid_argument(text);
}

}  // namespace

void check_step(const RtModel& model, const RtStep& s) {
  const RtConfig& c = model.config;
  require(model.finalized, "rt_finalize was not called");
  require(s.num_rows >= 0 && s.num_tokens >= 0 && s.num_logit_tokens >= 0, "negative size");
  require(s.allowed_ids == nullptr || (s.logit_rows != nullptr && s.argmax == nullptr),
          "bitmasks need logit_rows, and leave no arg-max");
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
  if (step.allowed_ids != nullptr) step.allowed_ids += first;
  if (step.logit_rows != nullptr) step.logit_rows += first;
}

}  // namespace rt
