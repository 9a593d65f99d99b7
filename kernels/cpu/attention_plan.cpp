#include "attention_plan.h"

#include <algorithm>
#include <cstring>

namespace rt {
namespace {

const int32_t* slots_of(const RtStep& step, int row) {
  return step.slot_table + step.table_rows[row] * step.slot_table_stride;
}

int new_tokens(const RtStep& step, int row) {
  return step.cu_query_lens[row + 1] - step.cu_query_lens[row];
}

int num_splits(const RtStep& step, int row) {
  return (step.kv_lens[row] + kSplitTokens - 1) / kSplitTokens;
}

// Both rows see the whole split, none of it is new to either, and its slots are the same.
bool shares_split(const RtStep& step, int a, int b, int split) {
  const int end = (split + 1) * kSplitTokens;
  if (end > step.kv_lens[a] - new_tokens(step, a)) return false;
  if (end > step.kv_lens[b] - new_tokens(step, b)) return false;
  const int32_t* x = slots_of(step, a) + split * kSplitTokens;
  const int32_t* y = slots_of(step, b) + split * kSplitTokens;
  return x == y || memcmp(x, y, sizeof(int32_t) * kSplitTokens) == 0;
}

// Groups rows by equal slots of `split`; rows that differ earlier are already in different groups.
std::vector<std::vector<int>> group_rows(const RtStep& step, const std::vector<int>& rows,
                                         int split) {
  std::vector<std::vector<int>> groups;
  for (int row : rows) {
    std::vector<int>* home = nullptr;
    if (step.share_prefixes)
      for (std::vector<int>& group : groups)
        if (shares_split(step, group[0], row, split)) {
          home = &group;
          break;
        }
    if (home == nullptr)
      groups.push_back({row});
    else
      home->push_back(row);
  }
  return groups;
}

}  // namespace

AttentionScratchSizes attention_scratch_sizes(int q_stride) {
  const size_t d = static_cast<size_t>(q_stride);
  AttentionScratchSizes s;
  s.keys = kSplitTokens * 2 * std::max<size_t>(d, kPackedHeadElements);
  s.tile_o = d * 64;
  s.queries = std::max<size_t>(kMaxSequentialTiles * d, kPackedHeadElements) * 32;
  s.state_o = kMaxSequentialTiles * s.tile_o;
  s.state_ml = kMaxSequentialTiles * 64;
  const size_t tiles =
      2 * s.keys + kSplitTokens * 192 + s.tile_o + 384 + s.queries + s.state_o + 2 * s.state_ml;
  const size_t width = (d + 15) / 16 * 16;  // see VectorScratch
  const size_t vectors =
      4 * ((2 * kSplitTokens + 2 * kMaxVectorQueries + 4) * width + 4 * kSplitTokens);
  s.total = std::max(tiles, vectors);
  return s;
}

void AttentionPlan::build(const RtStep& step, int num_heads, int num_kv_heads, int q_stride,
                          int num_threads) {
  sequential.clear();
  partial.clear();
  partial_rows.clear();
  merges.clear();
  num_partials = 0;
  first_partial.assign(step.num_tokens, 0);
  std::vector<int> short_rows;
  for (int row = 0; row < step.num_rows; ++row) {
    const int begin = step.cu_query_lens[row], end = step.cu_query_lens[row + 1];
    if (begin == end) continue;
    if (end - begin >= kSequentialTokens) {
      add_sequential(step, row, num_heads / num_kv_heads, num_threads);
      continue;
    }
    short_rows.push_back(row);
    for (int t = begin; t < end; ++t) {
      first_partial[t] = num_partials;
      const int seen = static_cast<int>(step.positions[t]) / kSplitTokens + 1;
      merges.push_back({t, seen, num_partials});
      num_partials += seen;
    }
  }
  const int sequential_rows = static_cast<int>(sequential.size());
  // Expand over heads; late blocks see the most keys, so they go first.
  std::vector<SequentialUnit> blocks(sequential.rbegin(), sequential.rend());
  sequential.clear();
  sequential.reserve(static_cast<size_t>(sequential_rows) * num_kv_heads);
  for (const SequentialUnit& block : blocks)
    for (int h = 0; h < num_kv_heads; ++h)
      sequential.push_back({block.row, block.token_begin, block.token_end, h});
  add_partial(step, short_rows, num_heads / num_kv_heads, num_kv_heads, q_stride,
              num_threads);
  num_units = static_cast<int>(sequential.size() + partial.size());
}

void AttentionPlan::add_sequential(const RtStep& step, int row, int group, int num_threads) {
  const int begin = step.cu_query_lens[row], end = step.cu_query_lens[row + 1];
  const int lanes = num_threads <= 2 ? kSequentialBlockLanes : kSequentialBlockLanes / 2;
  const int most = std::max(1, lanes / group);
  const int blocks = (end - begin + most - 1) / most;
  const int block = (end - begin + blocks - 1) / blocks;
  for (int t = begin; t < end; t += block)
    sequential.push_back({row, t, std::min(t + block, end), 0});
}

void AttentionPlan::add_partial(const RtStep& step, const std::vector<int>& rows, int group,
                                int num_kv_heads, int q_stride, int num_threads) {
  std::vector<std::vector<int>> groups = {rows};
  int most_splits = 0, total_splits = 0;
  for (int row : rows) {
    most_splits = std::max(most_splits, num_splits(step, row));
    total_splits += num_splits(step, row);
  }
  // Consecutive splits of the same rows go to one unit while plenty of units remain.
  const int run = std::max(1, std::min(8, total_splits / (num_threads * 8)));
  struct Open {
    int unit_begin, unit_end;
  };
  std::vector<Open> open;  // the units of each current group, to be extended
  for (int split = 0; split < most_splits; ++split) {
    std::vector<std::vector<int>> next;
    std::vector<Open> next_open;
    for (size_t g = 0; g < groups.size(); ++g) {
      std::vector<int> alive;
      for (int row : groups[g])
        if (split < num_splits(step, row)) alive.push_back(row);
      for (std::vector<int>& members : group_rows(step, alive, split)) {
        const bool same = g < open.size() && members == groups[g] &&
                          split - partial[open[g].unit_begin].split_begin < run;
        if (same) {
          for (int u = open[g].unit_begin; u < open[g].unit_end; ++u)
            partial[u].split_end = split + 1;
          next_open.push_back(open[g]);
          next.push_back(std::move(members));
          continue;
        }
        int lanes = 0;
        for (int row : members) lanes += new_tokens(step, row) * group;
        const int packed = std::min(kMaxTileLanes / std::max(1, lanes),
                                    kPackedHeadElements / q_stride);
        // Too few splits for all members: heads apart, so that none of them only waits.
        const int spread = num_threads > total_splits ? 1 : num_kv_heads;
        const int heads = std::max(1, std::min(spread, packed));
        const int rows_begin = static_cast<int>(partial_rows.size());
        partial_rows.insert(partial_rows.end(), members.begin(), members.end());
        const int rows_end = static_cast<int>(partial_rows.size());
        const int unit_begin = static_cast<int>(partial.size());
        for (int h = 0; h < num_kv_heads; h += heads)
          partial.push_back({split, split + 1, rows_begin, rows_end, h,
                             std::min(num_kv_heads, h + heads)});
        next_open.push_back({unit_begin, static_cast<int>(partial.size())});
        next.push_back(std::move(members));
      }
    }
    groups = std::move(next);
    open = std::move(next_open);
  }
}

}  // namespace rt
