#define RT_ISA isa_amx
#include "attention_units_amx.h"
#include "linear_amx.h"
#include "linear_quant_amx.h"
#include "portable_table.h"

namespace rt {
namespace RT_ISA {

static void linear_unit_amx(const LinearArgs& args, const LinearUnit& unit,
                            ThreadScratch& scratch) {
  const WeightKind kind = args.weight[unit.part]->kind;
  switch (kind) {
    case WeightKind::kBf16: return linear_unit_tiles<WeightKind::kBf16>(args, unit, scratch);
    case WeightKind::kW8A8: return linear_unit_tiles<WeightKind::kW8A8>(args, unit, scratch);
    case WeightKind::kW8A16: return linear_unit_tiles<WeightKind::kW8A16>(args, unit, scratch);
    case WeightKind::kF32: return linear_unit_float(args, unit, scratch);
    default: linear_unit_quant_amx(args, unit, scratch);
  }
}

// Tiles multiply bf16: f32 queries or an f32 pool would lose what they were asked for.
RT_INLINE bool attends_in_tiles(const AttentionArgs& args) {
  return !args.as_f32 && args.kv_dtype != RT_F32;
}

static void attention_unit(const AttentionArgs& args, int unit, ThreadScratch& scratch) {
  if (attends_in_tiles(args))
    attention_unit_amx(args, unit, scratch);
  else
    attention_unit_portable(args, unit, scratch);
}

static void attention_merge(const AttentionArgs& args, int unit) {
  if (attends_in_tiles(args))
    attention_merge_amx(args, unit);
  else
    attention_merge_portable(args, unit);
}

static void enter(ThreadScratch& scratch) {
  enter_float_mode(scratch);
  scratch.tile_config = 0;
}

static void leave(ThreadScratch& scratch) {
  _tile_release();  // tiles in use cost 8 KiB at every context switch
  leave_float_mode(scratch);
}

// Full tiles of ordinary values: zeros would run faster than any real product.
static double multiply_tiles(int rounds) {
  ThreadScratch scratch;
  configure(scratch, tile_shape(16, 16));
  alignas(64) uint16_t values[512];
  for (int i = 0; i < 512; ++i)
    values[i] = static_cast<uint16_t>(0x3e00 + (i * 2654435761u >> 20 & 0x81ff));
  _tile_loadd(4, values, 64);
  _tile_loadd(5, values, 64);
  _tile_loadd(6, values, 64);
  _tile_loadd(7, values, 64);
  for (int i = 0; i < rounds; ++i) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  return 4.0 * 2 * 16 * 16 * 32 * rounds;
}

static const KernelTable tile_table = {
    linear_unit_amx, rms_norm,     write_row, rope_and_store, attention_unit, attention_merge,
    logits_stats,    enter,        leave,     read_memory,    multiply_tiles, kWideRows,
    row_peak,        row_block_maxima, row_weights, legal_peak,  find_value,    gather_legal,
};

}  // namespace RT_ISA

const KernelTable& amx_table() { return RT_ISA::tile_table; }

}  // namespace rt
