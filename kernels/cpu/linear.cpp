#include "linear.h"

#include <algorithm>

namespace rt {
namespace {

// Input rows of a block stay in L2 (2 MiB, shared by two hyperthreads) while panels stream past.
constexpr int64_t kInputBlockBytes = 768 << 10;

}  // namespace

LinearPlan plan_linear(const LinearArgs& args, int num_threads) {
  LinearPlan plan;
  const PackedWeight& first = *args.weight[0];
  const int64_t row_bytes = static_cast<int64_t>(first.k_padded) * 2;
  const int fitting = static_cast<int>(kInputBlockBytes / row_bytes) / 32 * 32;
  plan.m_block = std::min(std::max(fitting, 64), args.m);
  plan.num_m_blocks = args.m == 0 ? 0 : (args.m + plan.m_block - 1) / plan.m_block;
  if (plan.num_m_blocks > 1)  // equal blocks: a last block of a few rows would re-read all weights
    plan.m_block = static_cast<int>(
        round_up((args.m + plan.num_m_blocks - 1) / plan.num_m_blocks, 32));
  plan.num_m_blocks = args.m == 0 ? 0 : (args.m + plan.m_block - 1) / plan.m_block;

  const int parts = args.is_gated() ? 1 : args.num_parts;
  int panels = 0;
  for (int p = 0; p < parts; ++p) panels += args.weight[p]->num_panels;
  auto units_of = [&](int size) {
    int units = 0;
    for (int p = 0; p < parts; ++p) units += (args.weight[p]->num_panels + size - 1) / size;
    return units;
  };
  // Enough units for balance when a neighbour steals a core, large enough to stream.
  const int wanted = std::max(1, panels / (num_threads * 12));
  const int most = args.is_gated() ? 8 : 16;
  const int least = args.is_gated() ? 2 : 4;
  int size = num_threads == 1 ? most : std::min(most, std::max(least, wanted / 4 * 4));
  // The time of few rows is that of their weights: an odd unit out would make all others wait.
  if (args.m <= kTileRows)
    for (int smaller = size; smaller > size / 2; --smaller)
      if (units_of(smaller) % num_threads == 0) {
        size = smaller;
        break;
      }
  plan.panels_per_unit = size;
  for (int p = 0; p < parts; ++p)
    plan.units_per_part[p] = (args.weight[p]->num_panels + size - 1) / size;
  plan.units_per_m_block = units_of(size);
  plan.num_units = plan.units_per_m_block * plan.num_m_blocks;
  return plan;
}

LinearUnit LinearPlan::unit(const LinearArgs& args, int index) const {
  const int block = index / units_per_m_block;
  int rest = index % units_per_m_block;
  int part = 0;
  while (rest >= units_per_part[part]) rest -= units_per_part[part++];
  const int first_panel = rest * panels_per_unit;
  const int num_panels = std::min(panels_per_unit, args.weight[part]->num_panels - first_panel);
  return {part, first_panel, num_panels, block * m_block, std::min(args.m, (block + 1) * m_block)};
}

}  // namespace rt
