// Partial attention units, the merge, and the choice between the kinds of unit.
#pragma once

#include "attention_sequential_amx.h"

namespace rt {
namespace RT_ISA {

// Results of lanes [begin, end) of a tile for one split go to their tokens' partial places.
static void store_partial(const AttentionArgs& args, const QueryTile& tile, int split, int begin,
                          int end, const AttentionScratch& a) {
  const int tiles_d = args.head_dim / 16;
  for (int lane = begin; lane < end; ++lane) {
    if (tile.limit[lane] <= split * kSplitTokens) continue;
    const int64_t at = (args.plan->first_partial[tile.token[lane]] + split) * args.num_heads +
                       tile.head[lane];
    args.partial_max[at] = a.top[lane];
    args.partial_sum[at] = a.sum[lane];
    float* o = args.partial_o + at * args.head_dim;
    for (int t = 0; t < tiles_d; ++t)
      _mm512_storeu_ps(o + t * 16, _mm512_load_ps(a.split_o + t * 256 + lane * 16));
  }
}

// Tiles [0, num_tiles) over every split of the unit.
static void partial_batch(const AttentionArgs& args, const PartialUnit& unit, int longest_row,
                          QueryTile* tiles, int num_tiles, const AttentionScratch& a) {
  const RtStep& step = *args.step;
  const int heads = unit.head_end - unit.head_begin;
  const int32_t* slots = row_slots(step, longest_row);
  for (int i = 0; i < num_tiles; ++i)
    pack_queries(args, tiles[i], a.queries + i * args.q_stride * 16);
  for (int split = unit.split_begin; split < unit.split_end; ++split) {
    const int first = split * kSplitTokens;
    const int left = step.kv_lens[longest_row] - first;
    const int keys = left < kSplitTokens ? left : kSplitTokens;
    const int padded = (keys + 31) / 32 * 32;
    gather_keys(args, slots + first, keys, padded, unit.head_begin, heads, a.keys);
    gather_values(args, slots + first, keys, padded, unit.head_begin, heads, a.values);
    for (int i = 0; i < num_tiles; ++i) {
      QueryTile& tile = tiles[i];
      if (tile.most <= first) continue;
      const int seen = (tile.most - first + 31) / 32 * 32;
      const int used = seen < padded ? seen : padded;
      score_and_soften(args, tile, first, used, heads, 0, a);
      for (int h = 0; h < tile.heads; ++h) {
        weigh_values(args.head_dim, used, h, a);
        store_partial(args, tile, split, h * tile.lanes_per_head,
                      (h + 1) * tile.lanes_per_head, a);
      }
    }
  }
}

static void partial_unit(const AttentionArgs& args, const PartialUnit& unit,
                         ThreadScratch& scratch) {
  const AttentionScratch a = carve(args, scratch);
  const RtStep& step = *args.step;
  const int group = args.num_heads / args.num_kv_heads;
  const int heads = unit.head_end - unit.head_begin;
  const int* rows = args.plan->partial_rows.data();
  const int longest = rows[unit.rows_begin];  // a group of several rows shares whole splits only
  QueryTile tiles[kMaxSequentialTiles];
  int num_tiles = 0, lane = 0;
  auto close_tile = [&] {
    if (lane == 0) return;
    tiles[num_tiles].lanes = lane;
    tiles[num_tiles].heads = heads;
    tiles[num_tiles].lanes_per_head = lane / heads;
    lane = 0;
    if (++num_tiles < kMaxSequentialTiles) return;
    partial_batch(args, unit, longest, tiles, num_tiles, a);
    num_tiles = 0;
  };
  // With several heads everything fits one tile (see AttentionPlan), head by head.
  for (int h = unit.head_begin; h < unit.head_end; ++h)
    for (int r = unit.rows_begin; r < unit.rows_end; ++r)
      for (int t = step.cu_query_lens[rows[r]]; t < step.cu_query_lens[rows[r] + 1]; ++t)
        for (int g = 0; g < group; ++g) {
          set_lane(args, tiles[num_tiles], lane, t, h * group + g);
          if (++lane == 16) close_tile();
        }
  close_tile();
  if (num_tiles > 0) partial_batch(args, unit, longest, tiles, num_tiles, a);
}

static void attention_unit_amx(const AttentionArgs& args, int unit, ThreadScratch& scratch) {
  configure(scratch, tile_shape(16, 16));
  const int sequential = static_cast<int>(args.plan->sequential.size());
  if (unit < sequential)
    sequential_unit(args, args.plan->sequential[unit], scratch);
  else
    partial_unit(args, args.plan->partial[unit - sequential], scratch);
}

static void attention_merge_amx(const AttentionArgs& args, int unit) {
  const MergeUnit& merge = args.plan->merges[unit];
  const int d = args.head_dim;
  for (int head = 0; head < args.num_heads; ++head) {
    alignas(64) float o[kMaxHeadDim] = {};
    __m512 top = _mm512_set1_ps(-1e30f), sum = _mm512_setzero_ps();
    for (int split = 0; split < merge.num_splits; ++split) {
      const int64_t at = (merge.first_partial + split) * args.num_heads + head;
      __m512 keep, take;
      merge_factors(top, sum, _mm512_set1_ps(args.partial_max[at]),
                    _mm512_set1_ps(args.partial_sum[at]), keep, take);
      const float* s = args.partial_o + at * d;
      for (int i = 0; i < d; i += 16) {
        const __m512 part = _mm512_mul_ps(_mm512_loadu_ps(s + i), take);
        _mm512_store_ps(o + i, _mm512_fmadd_ps(_mm512_load_ps(o + i), keep, part));
      }
    }
    const __m512 inverse = _mm512_set1_ps(1.0f / _mm512_cvtss_f32(sum));
    for (int i = 0; i < d; i += 16) _mm512_store_ps(o + i, _mm512_mul_ps(_mm512_load_ps(o + i), inverse));
    write_head(args, merge.token, head, o);
  }
}

}  // namespace RT_ISA
}  // namespace rt
