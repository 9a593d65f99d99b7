#define RT_ISA isa_amx
#include "attention_units_amx.h"
#include "linear_amx.h"
#include "portable_table.h"

namespace rt {
namespace RT_ISA {

static void linear_unit_amx(const LinearArgs& args, const LinearUnit& unit,
                            ThreadScratch& scratch) {
  if (args.weight[unit.part]->kind == WeightKind::kBf16)
    linear_unit_bf16(args, unit, scratch);
  else
    linear_unit(args, unit, scratch);
}

static void attention_unit(const AttentionArgs& args, int unit, ThreadScratch& scratch) {
  if (args.as_f32)
    attention_unit_portable(args, unit, scratch);
  else
    attention_unit_amx(args, unit, scratch);
}

static void enter(ThreadScratch& scratch) {
  enter_float_mode(scratch);
  scratch.tile_config = 0;
}

static void leave(ThreadScratch& scratch) {
  _tile_release();  // tiles in use cost 8 KiB at every context switch
  leave_float_mode(scratch);
}

static const KernelTable tile_table = {
    linear_unit_amx,     rms_norm,     write_row, rope_and_store, attention_unit,
    attention_merge_amx, logits_stats, enter,     leave,          true,
};

}  // namespace RT_ISA

const KernelTable& amx_table() { return RT_ISA::tile_table; }

}  // namespace rt
