// bf16 paged attention on AMX tiles; see attention_plan.h for units and the invariance rule.
//
// A query tile has 16 lanes, each one (token, head). Scores are computed transposed, keys down and
// lanes across: keys load as they lie in the pool, and the softmax over keys is plain vertical
// arithmetic. Lanes of several kv heads may share a tile (decode of a model with few heads): each
// kv head's queries are zero outside its own lanes, so adding its products changes nothing there.
#pragma once

#include "amx_tiles.h"
#include "attention_pack.h"
#include "attention_portable.h"

namespace rt {
namespace RT_ISA {

struct QueryTile {
  int lanes = 0, heads = 1, lanes_per_head = 0;
  int token[kMaxTileLanes] = {};
  int head[kMaxTileLanes] = {};
  int limit[kMaxTileLanes] = {};  // keys this lane may see, counted from position 0
  int least = 0, most = 0;
  uint16_t* packed = nullptr;  // [heads][q_stride / 32][16 pairs][16 lanes][2]
};

// One thread's working memory, carved out of scratch.attention.
struct AttentionScratch {
  uint16_t* keys;     // [128 / 16][heads][d / 32][16][32]
  uint16_t* values;   // [heads][d / 16][128 / 32][16 pairs][16][2]
  float* scores;      // two of [128][16 lanes]
  uint16_t* weights;  // two of [128 / 32][16 lanes][32]
  float* split_o;     // [d / 16][16 lanes][16]
  float* top;         // [16] of the split just done
  float* sum;
  uint16_t* queries;  // tiles of a unit
  float* state_o;     // running results of a sequential unit's tiles
  float* state_top;
  float* state_sum;
  float* state_split;  // (top, sum) of the splits of two tiles
};

RT_INLINE AttentionScratch carve(const AttentionArgs& args, ThreadScratch& scratch) {
  const AttentionScratchSizes s = attention_scratch_sizes(args.q_stride);
  uint8_t* p = scratch.attention;
  AttentionScratch a;
  auto take = [&p](size_t bytes) {
    uint8_t* here = p;
    p += bytes;
    return here;
  };
  a.keys = reinterpret_cast<uint16_t*>(take(s.keys));
  a.values = reinterpret_cast<uint16_t*>(take(s.keys));
  a.scores = reinterpret_cast<float*>(take(kSplitTokens * 128));
  a.weights = reinterpret_cast<uint16_t*>(take(kSplitTokens * 64));
  a.split_o = reinterpret_cast<float*>(take(s.tile_o));
  a.top = reinterpret_cast<float*>(take(64));
  a.sum = reinterpret_cast<float*>(take(64));
  a.queries = reinterpret_cast<uint16_t*>(take(s.queries));
  a.state_o = reinterpret_cast<float*>(take(s.state_o));
  a.state_top = reinterpret_cast<float*>(take(s.state_ml));
  a.state_sum = reinterpret_cast<float*>(take(s.state_ml));
  a.state_split = reinterpret_cast<float*>(take(256));
  return a;
}

// Fills the lanes of kv head `h` of a tile and packs their queries.
static void set_lane(const AttentionArgs& args, QueryTile& tile, int lane, int token, int head) {
  tile.token[lane] = token;
  tile.head[lane] = head;
  tile.limit[lane] = static_cast<int>(args.step->positions[token]) + 1;
  if (lane == 0 || tile.limit[lane] < tile.least) tile.least = tile.limit[lane];
  if (lane == 0 || tile.limit[lane] > tile.most) tile.most = tile.limit[lane];
}

static void pack_queries(const AttentionArgs& args, QueryTile& tile, uint16_t* packed) {
  const int chunks = args.q_stride / 32;
  const uint16_t* q = static_cast<const uint16_t*>(args.q);
  tile.packed = packed;
  for (int h = 0; h < tile.heads; ++h)
    for (int c = 0; c < chunks; ++c, packed += 512) {
      __m512i r[16];
      for (int lane = 0; lane < 16; ++lane) {
        const bool mine = lane < tile.lanes && lane / tile.lanes_per_head == h;
        const int64_t at =
            (static_cast<int64_t>(tile.token[lane]) * args.num_heads + tile.head[lane]) *
                args.q_stride + c * 32;
        r[lane] = mine ? _mm512_loadu_si512(q + at) : _mm512_setzero_si512();
      }
      transpose_16x16(r);
      for (int pair = 0; pair < 16; ++pair) _mm512_store_si512(packed + pair * 32, r[pair]);
    }
}

// scores[key][lane] for `keys` keys (a multiple of 32).
static void score_split(const AttentionArgs& args, const QueryTile& tile, int keys, int heads_packed,
                        int first_head, const AttentionScratch& a) {
  const int dk = args.q_stride / 32;
  const int key_step = heads_packed * dk * 512;  // between blocks of 16 keys
  for (int base = 0; base < keys; base += 64) {
    const int blocks = keys - base >= 64 ? 4 : 2;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int h = 0; h < tile.heads; ++h)
      for (int c = 0; c < dk; ++c) {
        const uint16_t* k = a.keys + base / 16 * key_step + ((first_head + h) * dk + c) * 512;
        _tile_loadd(6, tile.packed + (h * dk + c) * 512, 64);
        _tile_loadd(4, k, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, k + key_step, 64);
        _tile_dpbf16ps(1, 5, 6);
        if (blocks == 2) continue;
        _tile_loadd(4, k + 2 * key_step, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, k + 3 * key_step, 64);
        _tile_dpbf16ps(3, 5, 6);
      }
    float* out = a.scores + base * 16;
    _tile_stored(0, out, 64);
    _tile_stored(1, out + 256, 64);
    if (blocks == 2) continue;
    _tile_stored(2, out + 512, 64);
    _tile_stored(3, out + 768, 64);
  }
}

// 2^x to 1e-5 relative, exact at 0: the weights are rounded to bf16 afterwards.
RT_INLINE __m512 exp2_short(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-126.0f), x);
  const __m512 magic = _mm512_set1_ps(12582912.0f);
  const __m512 t = _mm512_add_ps(x, magic);
  const __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(t, magic));
  __m512 p = _mm512_set1_ps(kExp2C4);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kExp2C3));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kExp2C2));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kExp2C1));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  const __m512i shift = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), shift));
}

// 2^x to 3e-6 relative, exact at 0 and 0 where it underflows: for the weights of keys. After tile
// instructions a core does one vector float operation in a cycle, not two; these are seven where
// exp2_short takes ten.
RT_INLINE __m512 exp2_weight(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF);  // x - floor(x)
  __m512 p = _mm512_set1_ps(kShortC4);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kShortC3));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kShortC2));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kShortC1));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}

RT_INLINE __m512i lane_limits(const QueryTile& tile, int first_key) {
  return _mm512_sub_epi32(_mm512_loadu_si512(tile.limit), _mm512_set1_epi32(first_key));
}
RT_INLINE __mmask16 sees_key(__m512i limit, int key) {
  return _mm512_cmpgt_epi32_mask(limit, _mm512_set1_epi32(key));
}

// The greater of top and the visible scores of keys [begin, end), a multiple of four of them.
template <bool kMasked>
RT_INLINE __m512 raise_top(__m512 top, __m512i limit, const float* scores, int begin, int end) {
  const __m512 lowest = _mm512_set1_ps(-1e30f);
  __m512 tops[4] = {top, lowest, lowest, lowest};
  for (int j = begin; j < end; j += 4)
    for (int i = 0; i < 4; ++i) {
      __m512 s = _mm512_load_ps(scores + (j + i) * 16);
      if (kMasked) s = _mm512_mask_blend_ps(sees_key(limit, j + i), lowest, s);
      tops[i] = _mm512_max_ps(tops[i], s);
    }
  return _mm512_max_ps(_mm512_max_ps(tops[0], tops[1]), _mm512_max_ps(tops[2], tops[3]));
}

// Softmax over one split's keys, lane by lane. Keys at or past a lane's limit weigh exactly 0, so
// leaving them out or carrying them along gives the same bits.
struct SplitSoftmax {
  __m512 scale, shift, sum0, sum1;
  __m512i limit;

  // From the greatest scores of the lanes, see raise_top().
  inline __attribute__((always_inline)) void begin(const QueryTile& tile, int first_key,
                                                   float scale_log2, __m512 top) {
    limit = lane_limits(tile, first_key);
    scale = _mm512_set1_ps(scale_log2);
    shift = _mm512_mul_ps(top, scale);
    sum0 = sum1 = _mm512_setzero_ps();
  }

  // Eight keys from `key` on: four vectors of weights, pairs of keys for each lane.
  template <bool kMasked>
  inline __attribute__((always_inline)) void soften(const float* scores, int key, uint16_t* pairs) {
    for (int j = key; j < key + 8; j += 2, pairs += 32) {
      __m512 p0 = exp2_weight(_mm512_fmsub_ps(_mm512_load_ps(scores + j * 16), scale, shift));
      __m512 p1 = exp2_weight(_mm512_fmsub_ps(_mm512_load_ps(scores + j * 16 + 16), scale, shift));
      if (kMasked) {
        p0 = _mm512_maskz_mov_ps(sees(j), p0);
        p1 = _mm512_maskz_mov_ps(sees(j + 1), p1);
      }
      sum0 = _mm512_add_ps(sum0, p0);
      sum1 = _mm512_add_ps(sum1, p1);
      _mm512_store_si512(pairs, pair_bf16(p0, p1));
    }
  }

  // Writes the greatest score, already in units of the exponent, and the sum of the weights.
  void end(float* top_and_sum) const {
    _mm512_store_ps(top_and_sum, shift);
    _mm512_store_ps(top_and_sum + 16, _mm512_add_ps(sum0, sum1));
  }

  __mmask16 sees(int key) const { return sees_key(limit, key); }
};

// Fills weights ([128 / 32][16 lanes][32]), top and sum.
template <bool kMasked>
static void soften_split(const QueryTile& tile, int first_key, int keys, float scale_log2,
                         const AttentionScratch& a) {
  SplitSoftmax softmax;
  const __m512 top = raise_top<kMasked>(_mm512_set1_ps(-1e30f), lane_limits(tile, first_key),
                                        a.scores, 0, keys);
  softmax.begin(tile, first_key, scale_log2, top);
  for (int chunk = 0; chunk < keys; chunk += 32) {
    uint16_t* out = a.weights + chunk * 16;
    for (int i = 0; i < 32; i += 8) softmax.soften<kMasked>(a.scores, chunk + i, out + i * 16);
    __m512i pairs[16];
    for (int i = 0; i < 16; ++i) pairs[i] = _mm512_load_si512(out + i * 32);
    transpose_16x16(pairs);
    for (int lane = 0; lane < 16; ++lane) _mm512_store_si512(out + lane * 32, pairs[lane]);
  }
  softmax.end(a.top);
}

// split_o[d / 16][lane][16] = weights x values of one kv head; rows of other heads are garbage.
static void weigh_values(int head_dim, int keys, int head, const AttentionScratch& a) {
  const int tiles = head_dim / 16;
  const uint16_t* v = a.values + static_cast<int64_t>(head) * tiles * (kSplitTokens / 32) * 512;
  constexpr int kTileStep = (kSplitTokens / 32) * 512;
  for (int t = 0; t < tiles; t += 4) {
    const int count = tiles - t < 4 ? tiles - t : 4;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int c = 0; c < keys / 32; ++c) {
      const uint16_t* b = v + t * kTileStep + c * 512;
      _tile_loadd(4, a.weights + c * 512, 64);
      _tile_loadd(6, b, 64);
      _tile_dpbf16ps(0, 4, 6);
      if (count > 1) {
        _tile_loadd(7, b + kTileStep, 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      if (count > 2) {
        _tile_loadd(6, b + 2 * kTileStep, 64);
        _tile_dpbf16ps(2, 4, 6);
      }
      if (count > 3) {
        _tile_loadd(7, b + 3 * kTileStep, 64);
        _tile_dpbf16ps(3, 4, 7);
      }
    }
    float* out = a.split_o + t * 256;
    _tile_stored(0, out, 64);
    if (count > 1) _tile_stored(1, out + 256, 64);
    if (count > 2) _tile_stored(2, out + 512, 64);
    if (count > 3) _tile_stored(3, out + 768, 64);
  }
}

// The one merge rule: (top, sum, o) of all earlier splits, then the next split.
RT_INLINE void merge_factors(__m512& top, __m512& sum, __m512 split_top, __m512 split_sum,
                             __m512& keep, __m512& take) {
  const __m512 both = _mm512_max_ps(top, split_top);
  keep = exp2_short(_mm512_sub_ps(top, both));
  take = exp2_short(_mm512_sub_ps(split_top, both));
  sum = _mm512_fmadd_ps(sum, keep, _mm512_mul_ps(split_sum, take));
  top = both;
}

RT_INLINE void score_and_soften(const AttentionArgs& args, const QueryTile& tile, int first_key,
                                int keys, int heads_packed, int first_head,
                                const AttentionScratch& a) {
  score_split(args, tile, keys, heads_packed, first_head, a);
  const float scale_log2 = args.scale * kLog2E;
  if (tile.least >= first_key + keys)
    soften_split<false>(tile, first_key, keys, scale_log2, a);
  else
    soften_split<true>(tile, first_key, keys, scale_log2, a);
}

}  // namespace RT_ISA
}  // namespace rt
