// What a step may ask for, and long steps cut into chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "model.h"

namespace rt {

// Everything that could make a kernel read or write outside the caller's arrays, but for the
// contents of the slot table, which are the memory owner's promise, throws std::invalid_argument.
void check_step(const RtModel& model, const RtStep& s);

// Tokens [begin, end) of a step as a step of its own: rows that end earlier are left out, a row that
// goes on is cut short. Tokens of a row stay in order, so their keys are in the pool when needed.
struct StepChunk {
  StepChunk(const RtStep& whole, int begin, int end, int64_t hidden_size);

  RtStep step;
  std::vector<int32_t> cu_query_lens, kv_lens, logit_tokens;
  std::vector<int64_t> table_rows;
};

}  // namespace rt
