// Paged attention on plain vectors: any instruction set, any pool type; see attention_plan.h for
// units and the invariance rule.
//
// A split's keys and values are brought into f32 once and serve all queries of the unit, up to four
// at a time for each load. Every score is one dot product and every result one sum over the keys in
// order, so neither how many queries are taken together nor what else a unit holds changes a bit.
#pragma once

#include "attention_gather.h"

namespace rt {
namespace RT_ISA {

// Vectors of a head that are accumulated at once, for each of up to four queries.
constexpr int kHeadVectors = kLanes == 16 ? 4 : 2;

struct Query {
  int token, head;
  int limit;  // keys it may see, counted from position 0
};

// One thread's working memory, carved out of scratch.attention. width: head_dim rounded up to 16.
struct VectorScratch {
  int width;
  float* keys;     // [kSplitTokens][width]
  float* values;   // [kSplitTokens][width]
  float* queries;  // [kMaxVectorQueries][width]
  float* state_o;  // [kMaxVectorQueries][width], running results of a sequential unit
  float* split_o;  // [4][width], of the split just done
  float* scores;   // [4][kSplitTokens]
};

RT_INLINE VectorScratch carve_vectors(const AttentionArgs& args, ThreadScratch& scratch) {
  float* p = reinterpret_cast<float*>(scratch.attention);
  VectorScratch a;
  a.width = (args.head_dim + 15) / 16 * 16;
  auto take = [&p](int rows, int columns) {
    float* here = p;
    p += rows * columns;
    return here;
  };
  a.keys = take(kSplitTokens, a.width);
  a.values = take(kSplitTokens, a.width);
  a.queries = take(kMaxVectorQueries, a.width);
  a.state_o = take(kMaxVectorQueries, a.width);
  a.split_o = take(4, a.width);
  a.scores = take(4, kSplitTokens);
  return a;
}

RT_INLINE const int32_t* row_slots(const RtStep& step, int row) {
  return step.slot_table + step.table_rows[row] * step.slot_table_stride;
}

static void load_query(const AttentionArgs& args, const Query& query, int width, float* out) {
  const int d = args.head_dim;
  const int64_t at = (static_cast<int64_t>(query.token) * args.num_heads + query.head) * args.q_stride;
  if (args.as_f32)
    widen_head(static_cast<const float*>(args.q) + at, d, out);
  else
    widen_head(static_cast<const uint16_t*>(args.q) + at, d, out);
  memset(out + d, 0, sizeof(float) * static_cast<size_t>(width - d));
}

// Scores of kQueries queries with kLanes / kQueries keys, in units of the exponent.
template <int kQueries>
RT_INLINE void score_keys(const float* const* q, const float* k, int width, float scale,
                          float* out) {
  constexpr int kKeys = kLanes / kQueries;
  Vec acc[kLanes] = {};
  for (int i = 0; i < width; i += kLanes)
#pragma GCC unroll 16
    for (int key = 0; key < kKeys; ++key) {
      const Vec x = load(k + key * width + i);
#pragma GCC unroll 4
      for (int j = 0; j < kQueries; ++j)
        acc[j * kKeys + key] = fmadd(load(q[j] + i), x, acc[j * kKeys + key]);
    }
  float sums[kLanes];
  store(sums, sum_each(acc) * scale);
  for (int j = 0; j < kQueries; ++j)
    memcpy(out + j * kSplitTokens, sums + j * kKeys, sizeof(float) * kKeys);
}

// Turns one query's scores into weights, 0 from key `seen` on, and gives their greatest and sum.
RT_INLINE void soften(float* scores, int seen, int padded, float* top, float* sum) {
  VecI lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  const Vec lowest = splat(-1e30f);
  Vec most = lowest;
  for (int i = 0; i < padded; i += kLanes)
    most = max(lane < seen - i ? load(scores + i) : lowest, most);
  *top = max_lanes(most);
  Vec total = {};
  for (int i = 0; i < padded; i += kLanes) {
    const Vec p = lane < seen - i ? exp2_of(load(scores + i) - *top) : Vec{};
    total = total + p;
    store(scores + i, p);
  }
  *sum = sum_lanes(total);
}

// o[kQueries][width], kVectors vectors of it: weights [kQueries][kSplitTokens] x values.
template <int kQueries, int kVectors>
RT_INLINE void weigh_values(const float* weights, const float* v, int keys, int width, float* o) {
  Vec acc[kQueries][kVectors] = {};
  for (int key = 0; key < keys; ++key, v += width) {
    Vec x[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) x[n] = load(v + n * kLanes);
#pragma GCC unroll 4
    for (int j = 0; j < kQueries; ++j) {
      const Vec w = splat(weights[j * kSplitTokens + key]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) acc[j][n] = fmadd(w, x[n], acc[j][n]);
    }
  }
  for (int j = 0; j < kQueries; ++j)
    for (int n = 0; n < kVectors; ++n) store(o + j * width + n * kLanes, acc[j][n]);
}

// (top, sum, weighted values) of up to kQueries queries over one split's keys; the values go to
// split_o. seen: keys of the split that each query may see.
template <int kQueries>
static void attend_split(const VectorScratch& a, const float* const* q, const int* seen,
                         float scale, float* top, float* sum) {
  int most = 0;
  for (int j = 0; j < kQueries; ++j) most = seen[j] > most ? seen[j] : most;
  const int padded = (most + kLanes - 1) / kLanes * kLanes;
  for (int key = 0; key < padded; key += kLanes / kQueries)
    score_keys<kQueries>(q, a.keys + key * a.width, a.width, scale, a.scores + key);
  for (int j = 0; j < kQueries; ++j)
    soften(a.scores + j * kSplitTokens, seen[j], padded, top + j, sum + j);
  int i = 0;
  for (; i + kHeadVectors * kLanes <= a.width; i += kHeadVectors * kLanes)
    weigh_values<kQueries, kHeadVectors>(a.scores, a.values + i, most, a.width, a.split_o + i);
  for (; i < a.width; i += kLanes)
    weigh_values<kQueries, 1>(a.scores, a.values + i, most, a.width, a.split_o + i);
}

// Gathers a split of one kv head and takes queries [begin, end) through it; done(query, top, sum, o)
// is called for each one that sees something of it.
template <class Done>
RT_INLINE void attend_queries(const AttentionArgs& args, const VectorScratch& a,
                              const int32_t* slots, int split, int kv_head, const Query* queries,
                              int begin, int end, Done done) {
  const int first = split * kSplitTokens;
  int keys = 0;
  for (int i = begin; i < end; ++i)
    keys = queries[i].limit - first > keys ? queries[i].limit - first : keys;
  keys = keys < kSplitTokens ? keys : kSplitTokens;
  const int padded = (keys + 15) / 16 * 16;
  gather_as_f32(args, args.k, slots + first, keys, padded, kv_head, a.width, a.keys);
  gather_as_f32(args, args.v, slots + first, keys, padded, kv_head, a.width, a.values);
  for (int at = begin; at < end; at += 4) {
    const int count = end - at < 4 ? end - at : 4;
    const float* q[4];
    int seen[4];
    float top[4], sum[4];
    for (int j = 0; j < 4; ++j) {
      const int i = at + (j < count ? j : count - 1);
      const int left = queries[i].limit - first;
      q[j] = a.queries + i * a.width;
      seen[j] = left < 0 ? 0 : left < keys ? left : keys;
    }
    const float scale = args.scale * kLog2E;
    if (count == 1)
      attend_split<1>(a, q, seen, scale, top, sum);
    else if (count == 2)
      attend_split<2>(a, q, seen, scale, top, sum);
    else
      attend_split<4>(a, q, seen, scale, top, sum);
    for (int j = 0; j < count; ++j)
      if (seen[j] > 0) done(at + j, top[j], sum[j], a.split_o + j * a.width);
  }
}

// The one merge rule: (top, sum, o) of all earlier splits, then the next split.
RT_INLINE void merge_split(float& top, float& sum, float* o, int width, float split_top,
                           float split_sum, const float* split_o) {
  const float both = split_top > top ? split_top : top;
  const Vec keep = exp2_of(splat(top - both)), take = exp2_of(splat(split_top - both));
  sum = fmadd(splat(sum), keep, split_sum * take)[0];
  for (int i = 0; i < width; i += kLanes)
    store(o + i, fmadd(load(o + i), keep, load(split_o + i) * take));
  top = both;
}

static void write_head(const AttentionArgs& args, int token, int head, const float* o) {
  const int d = args.head_dim;
  if (args.out_rows != nullptr) {
    memcpy(args.out_rows + (static_cast<int64_t>(token) * args.num_heads + head) * d, o,
           sizeof(float) * static_cast<size_t>(d));
    return;
  }
  for (int i = 0; i < d; i += kPanel) {
    uint16_t* out = args.out_activation->bf16_at(token, head * d + i);
    for (int v = 0; v < kPanel; v += kLanes) store_bf16(out + v, load(o + i + v));
  }
}

RT_INLINE void finish_head(const AttentionArgs& args, int token, int head, float* o, float sum) {
  const float inverse = 1.0f / sum;
  for (int i = 0; i < args.head_dim; ++i) o[i] *= inverse;
  write_head(args, token, head, o);
}

static void sequential_unit_portable(const AttentionArgs& args, const SequentialUnit& unit,
                                     ThreadScratch& scratch) {
  const VectorScratch a = carve_vectors(args, scratch);
  const int group = args.num_heads / args.num_kv_heads;
  const int all = (unit.token_end - unit.token_begin) * group;
  const int32_t* slots = row_slots(*args.step, unit.row);
  for (int first = 0; first < all; first += kMaxVectorQueries) {
    const int count = all - first < kMaxVectorQueries ? all - first : kMaxVectorQueries;
    Query queries[kMaxVectorQueries];
    float top[kMaxVectorQueries], sum[kMaxVectorQueries];
    for (int i = 0; i < count; ++i) {
      const int token = unit.token_begin + (first + i) / group;
      queries[i] = {token, unit.kv_head * group + (first + i) % group,
                    static_cast<int>(args.step->positions[token]) + 1};
      load_query(args, queries[i], a.width, a.queries + i * a.width);
      top[i] = -1e30f;
      sum[i] = 0.0f;
    }
    memset(a.state_o, 0, sizeof(float) * static_cast<size_t>(count * a.width));
    for (int split = 0; split * kSplitTokens < queries[count - 1].limit; ++split)
      attend_queries(args, a, slots, split, unit.kv_head, queries, 0, count,
                     [&](int i, float split_top, float split_sum, const float* o) {
                       merge_split(top[i], sum[i], a.state_o + i * a.width, a.width, split_top,
                                   split_sum, o);
                     });
    for (int i = 0; i < count; ++i)
      finish_head(args, queries[i].token, queries[i].head, a.state_o + i * a.width, sum[i]);
  }
}

// Queries [0, count) over every split of the unit; those of several kv heads stand head by head.
static void partial_queries(const AttentionArgs& args, const PartialUnit& unit,
                            const Query* queries, int count, const VectorScratch& a) {
  const int heads = unit.head_end - unit.head_begin, per_head = count / heads;
  // A group of several rows shares whole splits only, so any row's slots will do.
  const int32_t* slots = row_slots(*args.step, args.plan->partial_rows[unit.rows_begin]);
  for (int i = 0; i < count; ++i) load_query(args, queries[i], a.width, a.queries + i * a.width);
  for (int split = unit.split_begin; split < unit.split_end; ++split)
    for (int h = 0; h < heads; ++h)
      attend_queries(args, a, slots, split, unit.head_begin + h, queries, h * per_head,
                     (h + 1) * per_head, [&](int i, float top, float sum, const float* o) {
                       const int64_t at =
                           (args.plan->first_partial[queries[i].token] + split) * args.num_heads +
                           queries[i].head;
                       args.partial_max[at] = top;
                       args.partial_sum[at] = sum;
                       memcpy(args.partial_o + at * args.head_dim, o,
                              sizeof(float) * static_cast<size_t>(args.head_dim));
                     });
}

static void partial_unit_portable(const AttentionArgs& args, const PartialUnit& unit,
                                  ThreadScratch& scratch) {
  const VectorScratch a = carve_vectors(args, scratch);
  const RtStep& step = *args.step;
  const int group = args.num_heads / args.num_kv_heads;
  const int* rows = args.plan->partial_rows.data();
  Query queries[kMaxVectorQueries];
  int count = 0;
  // With several heads everything fits one batch (see AttentionPlan).
  for (int h = unit.head_begin; h < unit.head_end; ++h)
    for (int r = unit.rows_begin; r < unit.rows_end; ++r)
      for (int t = step.cu_query_lens[rows[r]]; t < step.cu_query_lens[rows[r] + 1]; ++t)
        for (int g = 0; g < group; ++g) {
          queries[count] = {t, h * group + g, static_cast<int>(step.positions[t]) + 1};
          if (++count < kMaxVectorQueries) continue;
          partial_queries(args, unit, queries, count, a);
          count = 0;
        }
  if (count > 0) partial_queries(args, unit, queries, count, a);
}

static void attention_unit_portable(const AttentionArgs& args, int unit, ThreadScratch& scratch) {
  const int sequential = static_cast<int>(args.plan->sequential.size());
  if (unit < sequential)
    sequential_unit_portable(args, args.plan->sequential[unit], scratch);
  else
    partial_unit_portable(args, args.plan->partial[unit - sequential], scratch);
}

static void attention_merge_portable(const AttentionArgs& args, int unit) {
  const MergeUnit& merge = args.plan->merges[unit];
  const int d = args.head_dim, width = (d + 15) / 16 * 16;
  alignas(64) float o[kMaxHeadDim], part[kMaxHeadDim] = {};
  for (int head = 0; head < args.num_heads; ++head) {
    memset(o, 0, sizeof o);
    float top = -1e30f, sum = 0.0f;
    for (int split = 0; split < merge.num_splits; ++split) {
      const int64_t at = (merge.first_partial + split) * args.num_heads + head;
      memcpy(part, args.partial_o + at * d, sizeof(float) * static_cast<size_t>(d));
      merge_split(top, sum, o, width, args.partial_max[at], args.partial_sum[at], part);
    }
    finish_head(args, merge.token, head, o, sum);
  }
}

}  // namespace RT_ISA
}  // namespace rt
