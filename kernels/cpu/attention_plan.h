// Cuts one step's attention into units; made once per step, used by every layer.
//
// Invariance: keys are cut at multiples of kSplitTokens of the position axis, whatever the batch;
// each split yields (max, sum, weighted values) for a query, and these are merged in position order.
// Who computes a split, and for how many rows at once, never changes the arithmetic.
//
// Two kinds of unit:
//   sequential  a block of new tokens of one row, one kv head, all splits in order (long extends)
//   partial     some splits for the few new tokens of one or more rows; results go to scratch and a
//               merge unit per token combines them (decode). Rows whose slots of a split are equal
//               are handled by one unit, which reads those keys and values once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "abi.h"

namespace rt {

constexpr int kSplitTokens = 128;
constexpr int kMaxTileLanes = 16;
constexpr int kSequentialTokens = 16;      // rows with at least this many new tokens are sequential
// (token, head) pairs of one sequential unit. A unit packs the keys and values it sees, so larger is
// cheaper, as long as there are units enough for all threads.
constexpr int kSequentialBlockLanes = 1024;

constexpr int kMaxHeadDim = 256;
constexpr int kMaxSequentialTiles = 64;
constexpr int kMaxVectorQueries = 128;  // that attention_portable.h takes through a split at once
constexpr int kPackedHeadElements = 512;   // kv heads of one partial unit x padded head_dim

// Bytes of one thread's attention memory, by part, for tiles; total is enough for vectors too.
// q_stride is head_dim, rounded up to 32 where queries are bf16.
struct AttentionScratchSizes {
  size_t keys, tile_o, queries, state_o, state_ml, total;
};
AttentionScratchSizes attention_scratch_sizes(int q_stride);

struct SequentialUnit {
  int row, token_begin, token_end, kv_head;
};

struct PartialUnit {
  int split_begin, split_end;
  int rows_begin, rows_end;  // into partial_rows
  int head_begin, head_end;  // kv heads
};

struct MergeUnit {
  int token, num_splits;
  int64_t first_partial;
};

struct AttentionPlan {
  std::vector<SequentialUnit> sequential;
  std::vector<PartialUnit> partial;
  std::vector<int> partial_rows;
  std::vector<MergeUnit> merges;
  std::vector<int64_t> first_partial;  // [T], where a partial token's results start
  int64_t num_partials = 0;
  int num_units = 0;

  void build(const RtStep& step, int num_heads, int num_kv_heads, int q_stride, int num_threads);

 private:
  void add_sequential(const RtStep& step, int row, int group, int num_threads);
  void add_partial(const RtStep& step, const std::vector<int>& rows, int group, int num_kv_heads,
                   int q_stride, int num_threads);
};

}  // namespace rt
