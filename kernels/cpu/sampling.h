// From rows of logits to tokens and log-probabilities. The meaning is that of the torch sampler in
// srt/execution: same changes, same cuts, same numbers drawn, and ties go to the lower id.
//
// A row is worked on by one thread and looks at nothing else, so its result depends neither on the
// batch nor on the number of threads. Greedy rows cost one pass; only a log-probability or a draw
// over the whole vocabulary takes exponentials of every logit, block by block and never kept.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"

namespace rt {

constexpr int kScanBlock = 32;     // values whose largest bounds a top-k search
constexpr int kGatherSlack = 16;   // elements that gathering legal values may write past them
constexpr int kWeightBlock = 256;  // values whose weights are summed at a time

struct KernelTable;

// What one thread keeps between rows, so that none allocates.
struct SamplingScratch {
  struct Entry {
    double weight;
    float scaled;
    int32_t index;
  };
  struct Change {
    int32_t id;
    float before;
  };
  std::vector<int32_t> seen;   // [V] zero between rows; how often a token occurred
  std::vector<int32_t> distinct;
  std::vector<Change> changes;
  std::vector<int32_t> ids, picked;  // of the legal tokens, with slack; places within candidates
  std::vector<float> values, maxima;
  std::vector<double> sums;
  std::vector<Entry> entries;
};

// Throws std::invalid_argument for ids outside the vocabulary.
void check_sample_row(const RtSampleRow& row, int32_t vocab_size);

// Fills the row's results. logits [vocab_size] are changed meanwhile and as before afterwards.
void sample_row(const KernelTable& kernels, SamplingScratch& scratch, float* logits,
                int32_t vocab_size, RtSampleRow& row);

}  // namespace rt
