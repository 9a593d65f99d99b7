// The kernel table of an instruction set without tiles; included by isa_*.cpp.
#pragma once

#include <climits>

#include "attention_portable.h"
#include "float_mode.h"
#include "legal_scan.h"
#include "linear_portable.h"
#include "linear_quant.h"
#include "machine_limits.h"
#include "row_ops.h"
#include "row_scan.h"

namespace rt {
namespace RT_ISA {

static void linear_unit(const LinearArgs& args, const LinearUnit& unit, ThreadScratch& scratch) {
  const WeightKind kind = args.weight[unit.part]->kind;
  if (kind == WeightKind::kBf16 || kind == WeightKind::kF32 || kind == WeightKind::kW8A16)
    linear_unit_float(args, unit, scratch);
  else
    linear_unit_quant(args, unit, scratch);
}

static void enter_portable(ThreadScratch& scratch) { enter_float_mode(scratch); }
static void leave_portable(ThreadScratch& scratch) { leave_float_mode(scratch); }

static const KernelTable portable_table = {
    linear_unit,    rms_norm,     write_row,      rope_and_store, attention_unit_portable,
    attention_merge_portable, logits_stats, enter_portable, leave_portable, read_memory,
    multiply_registers, INT_MAX,   row_peak,       row_block_maxima,
    row_weights,    legal_peak,   find_value,     gather_legal,
};

}  // namespace RT_ISA
}  // namespace rt
