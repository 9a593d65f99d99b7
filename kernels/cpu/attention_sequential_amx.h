// Attention of a block of new tokens of one row: every split of its keys in order, tile by tile.
//
// Four tiles are in work at once: while one is softened with vector arithmetic, the next one's
// scores and the last one's weighted values run on the tile unit between those instructions, and
// the result of the one before is merged.
// Results are kept transposed, [head_dim][16 lanes]: the softened weights are stored as they come,
// and merging scales whole vectors. The products and their order are those of a partial unit.
#pragma once

#include "attention_amx.h"

namespace rt {
namespace RT_ISA {

// Work on one tile; a stage of the pipeline that has no tile has keys == 0.
struct TileStage {
  const QueryTile* tile = nullptr;
  int index = 0;
  int keys = 0;  // of this split, a multiple of 32
  uint16_t* weights = nullptr;  // [128 / 32][16 pairs][16 lanes][2]
};

// Values of one head, [d / 16][128 / 32][16 of d][32 keys].
static void gather_values_transposed(const AttentionArgs& args, const int32_t* slots, int keys,
                                     int padded, int head, uint16_t* out) {
  gather_values(args, slots, keys, padded, head, 1, out);
  for (int t = 0; t < args.head_dim / 16; ++t)
    for (int c = 0; c < padded / 32; ++c) {
      uint16_t* tile = out + (t * (kSplitTokens / 32) + c) * 512;
      __m512i r[16];
      for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(tile + i * 32);
      transpose_16x16(r);
      for (int i = 0; i < 16; ++i) _mm512_store_si512(tile + i * 32, r[i]);
    }
}

// Scores of 32 keys into tiles 4 and 5, q_stride elements [32 * begin, 32 * end).
RT_INLINE void score_chunk(const TileStage& next, const uint16_t* keys, int dk, int begin, int end) {
  for (int c = begin; c < end; ++c) {
    _tile_loadd(6, next.tile->packed + c * 512, 64);
    _tile_loadd(7, keys + c * 512, 64);
    _tile_dpbf16ps(4, 7, 6);
    _tile_loadd(7, keys + (dk + c) * 512, 64);
    _tile_dpbf16ps(5, 7, 6);
  }
}

constexpr int kValueTileStep = (kSplitTokens / 32) * 512;

// Adds a split's result to the running one of its tile, some vectors at a time.
struct TileMerge {
  const float* split = nullptr;
  float* o = nullptr;
  int left = 0;
  __m512 keep, take;

  void begin(const TileStage& done, int head_dim, const AttentionScratch& a) {
    if (done.keys == 0) return;
    const float* part = a.state_split + done.index % 2 * 32;
    __m512 top = _mm512_load_ps(a.state_top + done.index * 16);
    __m512 sum = _mm512_load_ps(a.state_sum + done.index * 16);
    merge_factors(top, sum, _mm512_load_ps(part), _mm512_load_ps(part + 16), keep, take);
    _mm512_store_ps(a.state_top + done.index * 16, top);
    _mm512_store_ps(a.state_sum + done.index * 16, sum);
    split = a.split_o;
    o = a.state_o + done.index * head_dim * 16;
    left = head_dim;
  }
  inline __attribute__((always_inline)) void advance() {  // head_dim is a multiple of 16
    if (left == 0) return;
    for (int i = 0; i < 64; i += 16) {
      const __m512 part = _mm512_mul_ps(_mm512_load_ps(split + i), take);
      _mm512_store_ps(o + i, _mm512_fmadd_ps(_mm512_load_ps(o + i), keep, part));
    }
    split += 64;
    o += 64;
    left -= 4;
  }
};

// Softens `now`, scores `next`, weighs the values of `last`, whose result goes to split_o, and adds
// what split_o held before, that of `done`, to the running result. The scores of `next` take the
// place of those of `now`, its weights that of those of `last`, as these are used up: all that is
// read again and again must fit the first-level cache.
template <bool kMasked, bool kFull>
static void advance_tiles(const AttentionArgs& args, int first_key, const TileStage& next,
                          const TileStage& now, const TileStage& last, const TileStage& done,
                          const AttentionScratch& a) {
  const int dk = kFull ? 2 : args.q_stride / 32, tiles_d = kFull ? 4 : args.head_dim / 16;
  const int now_keys = kFull ? kSplitTokens : now.keys, next_keys = kFull ? kSplitTokens : next.keys;
  const int last_keys = kFull ? kSplitTokens : last.keys;
  SplitSoftmax softmax;
  if (now_keys > 0) {  // the last 32 scores are not in a.top yet
    const __m512 top = raise_top<true>(_mm512_load_ps(a.top), lane_limits(*now.tile, first_key),
                                       a.scores, now_keys - 32, now_keys);
    softmax.begin(*now.tile, first_key, args.scale * kLog2E, top);
  }
  TileMerge merge;
  merge.begin(done, args.head_dim, a);
  __m512 next_top = _mm512_set1_ps(-1e30f);
  __m512i next_limit = _mm512_setzero_si512();
  if (next_keys > 0) next_limit = lane_limits(*next.tile, first_key);
  int most = now_keys > next_keys ? now_keys : next_keys;
  most = last_keys > most ? last_keys : most;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int key = 0; key < most; key += 32) {
    const bool soften = key < now_keys, score = key < next_keys, weigh = key < last_keys;
    const uint16_t* v = a.values + key * 16;
    const uint16_t* k = a.keys + key / 16 * dk * 512;
    uint16_t* out = now.weights + key * 16;
    if (weigh) {
      _tile_loadd(6, last.weights + key * 16, 64);
      _tile_loadd(7, v, 64);
      _tile_dpbf16ps(0, 7, 6);
      if (tiles_d > 1) {
        _tile_loadd(7, v + kValueTileStep, 64);
        _tile_dpbf16ps(1, 7, 6);
      }
    }
    if (soften) softmax.soften<kMasked>(a.scores, key, out);
    merge.advance();
    if (weigh && tiles_d > 2) {
      _tile_loadd(7, v + 2 * kValueTileStep, 64);
      _tile_dpbf16ps(2, 7, 6);
      if (tiles_d > 3) {
        _tile_loadd(7, v + 3 * kValueTileStep, 64);
        _tile_dpbf16ps(3, 7, 6);
      }
    }
    if (soften) softmax.soften<kMasked>(a.scores, key + 8, out + 128);
    merge.advance();
    if (score) {
      _tile_zero(4);
      _tile_zero(5);
      score_chunk(next, k, dk, 0, dk / 2);
      if (key > 0) next_top = raise_top<true>(next_top, next_limit, a.scores, key - 32, key);
    }
    if (soften) softmax.soften<kMasked>(a.scores, key + 16, out + 256);
    merge.advance();
    if (score) score_chunk(next, k, dk, dk / 2, dk);
    if (soften) softmax.soften<kMasked>(a.scores, key + 24, out + 384);
    merge.advance();
    if (score) {
      _tile_stored(4, a.scores + key * 16, 64);
      _tile_stored(5, a.scores + key * 16 + 256, 64);
    }
  }
  while (merge.left > 0) merge.advance();
  _mm512_store_ps(a.top, next_top);
  if (now_keys > 0) softmax.end(a.state_split + now.index % 2 * 32);
  if (last_keys == 0) return;
  _tile_stored(0, a.split_o, 64);
  if (tiles_d > 1) _tile_stored(1, a.split_o + 256, 64);
  if (tiles_d > 2) _tile_stored(2, a.split_o + 512, 64);
  if (tiles_d > 3) _tile_stored(3, a.split_o + 768, 64);
  for (int t = 4; t < tiles_d; ++t) {  // heads wider than 64
    _tile_zero(0);
    for (int key = 0; key < last_keys; key += 32) {
      _tile_loadd(6, last.weights + key * 16, 64);
      _tile_loadd(7, a.values + t * kValueTileStep + key * 16, 64);
      _tile_dpbf16ps(0, 7, 6);
    }
    _tile_stored(0, a.split_o + t * 256, 64);
  }
}

static void write_tile(const AttentionArgs& args, const QueryTile& tile, int index,
                       const AttentionScratch& a) {
  const int d = args.head_dim;
  const __m512 inverse =
      _mm512_div_ps(_mm512_set1_ps(1.0f), _mm512_load_ps(a.state_sum + index * 16));
  const float* o = a.state_o + index * d * 16;
  for (int t = 0; t < d; t += 16, o += 256) {
    __m512i r[16];
    for (int i = 0; i < 16; ++i)
      r[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_load_ps(o + i * 16), inverse));
    transpose_16x16(r);
    for (int lane = 0; lane < 16; ++lane) _mm512_store_si512(a.split_o + lane * d + t, r[lane]);
  }
  for (int lane = 0; lane < tile.lanes; ++lane)
    write_head(args, tile.token[lane], tile.head[lane], a.split_o + lane * d);
}

// Brings keys and values of some slots near: a tile's worth of work before they are gathered.
static void fetch_slots(const AttentionArgs& args, const int32_t* slots, int count, int head) {
  const int64_t item = kv_element_bytes(args.kv_dtype), stride = args.step->kv_slot_stride * item;
  const int64_t width = args.kv_head_stride * item;
  const char* k = static_cast<const char*>(args.k) + head * width;
  const char* v = static_cast<const char*>(args.v) + head * width;
  for (int j = 0; j < count; ++j)
    for (int64_t i = 0; i < width; i += 64) {
      _mm_prefetch(k + slots[j] * stride + i, _MM_HINT_T1);
      _mm_prefetch(v + slots[j] * stride + i, _MM_HINT_T1);
    }
}

static void sequential_unit(const AttentionArgs& args, const SequentialUnit& unit,
                            ThreadScratch& scratch) {
  const AttentionScratch a = carve(args, scratch);
  const int group = args.num_heads / args.num_kv_heads;
  const int lanes = (unit.token_end - unit.token_begin) * group;
  const int num_tiles = (lanes + 15) / 16;
  QueryTile tiles[kMaxSequentialTiles];
  int most = 0;
  for (int i = 0; i < num_tiles; ++i) {
    QueryTile& tile = tiles[i];
    tile.lanes = tile.lanes_per_head = lanes - i * 16 < 16 ? lanes - i * 16 : 16;
    for (int lane = 0; lane < tile.lanes; ++lane) {
      const int at = i * 16 + lane;
      set_lane(args, tile, lane, unit.token_begin + at / group, unit.kv_head * group + at % group);
    }
    pack_queries(args, tile, a.queries + i * args.q_stride * 16);
    most = tile.most > most ? tile.most : most;
    memset(a.state_o + i * args.head_dim * 16, 0, sizeof(float) * 16 * args.head_dim);
    _mm512_store_ps(a.state_top + i * 16, _mm512_set1_ps(-1e30f));
    _mm512_store_ps(a.state_sum + i * 16, _mm512_setzero_ps());
  }
  const int32_t* slots = row_slots(*args.step, unit.row);
  const bool common = args.head_dim == 64;  // what advance_tiles has a case of its own for
  for (int first = 0; first < most; first += kSplitTokens) {
    const int left = most - first, keys = left < kSplitTokens ? left : kSplitTokens;
    const int padded = (keys + 31) / 32 * 32;
    gather_keys(args, slots + first, keys, padded, unit.kv_head, 1, a.keys);
    gather_values_transposed(args, slots + first, keys, padded, unit.kv_head, a.values);
    auto stage = [&](int i) {
      TileStage s;
      s.weights = a.weights + (args.head_dim > 64 ? (i & 1) * kSplitTokens * 16 : 0);
      if (i < 0 || i >= num_tiles || tiles[i].most <= first) return s;
      const int seen = (tiles[i].most - first + 31) / 32 * 32;
      s.tile = &tiles[i];
      s.index = i;
      s.keys = seen < padded ? seen : padded;
      return s;
    };
    int ahead = first + kSplitTokens;  // slots of the next split that are not fetched yet
    const int ahead_end = most < ahead + kSplitTokens ? most : ahead + kSplitTokens;
    int begin = 0;  // tiles ascend, so those that see nothing of this split come first
    while (tiles[begin].most <= first) ++begin;
    TileStage done = stage(-1), last = done, now = done, next = stage(begin);
    for (int i = begin - 1; i <= num_tiles + 1; ++i) {
      const bool masked = now.keys > 0 && now.tile->least < first + now.keys;
      const bool full = common && next.keys + now.keys + last.keys == 3 * kSplitTokens;
      if (masked)
        advance_tiles<true, false>(args, first, next, now, last, done, a);
      else if (full)
        advance_tiles<false, true>(args, first, next, now, last, done, a);
      else
        advance_tiles<false, false>(args, first, next, now, last, done, a);
      const int fetched = ahead_end - ahead < 8 ? ahead_end - ahead : 8;
      if (fetched > 0) fetch_slots(args, slots + ahead, fetched, unit.kv_head), ahead += fetched;
      done = last;
      last = now;
      now = next;
      next = stage(i + 2);
    }
  }
  for (int i = 0; i < num_tiles; ++i) write_tile(args, tiles[i], i, a);
}

}  // namespace RT_ISA
}  // namespace rt
