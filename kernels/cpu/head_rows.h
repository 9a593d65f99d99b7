// Which logits a step needs: all of a row, or only those of the few ids that its bitmask allows.
//
// Full rows come first in the head's input and in the logits, so that the head takes them in one
// pass. The others get single panels: every output of a panel has the bits that the whole head gives
// it, whatever else is computed.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"
#include "linear.h"

namespace rt {

// Rows with more legal ids than the first of these get all logits. Where few-id rows together touch
// more than half of the panels, which costs as much as the whole head, the next number counts.
constexpr int kFewLegalIds[] = {1024, 64, 1};

struct HeadRows {
  // One panel for rows [row_begin, row_end), which lie in one tile of rows.
  struct Unit {
    int panel, row_begin, row_end;
  };

  std::vector<int32_t> place;  // [L] row of the head's input and of the logits, by logit token
  std::vector<Unit> units;
  int num_full = 0;

  void build(const RtStep& step, int vocab_size);

  // The legal columns of a panel, a bit each; none for full rows and for those with one legal id.
  uint32_t columns(int row, int panel) const {
    const uint32_t* mask = masks_[static_cast<size_t>(row)];
    return mask == nullptr ? 0 : mask[panel / 2] >> (panel % 2 * kPanel) & 0xffffu;
  }

 private:
  void part_rows(const RtStep& step, int vocab_size, int few_ids);
  bool touches_most_panels(int num_panels) const;
  void add_units(int num_panels);

  std::vector<int32_t> num_legal_, last_legal_;  // by logit token
  std::vector<const uint32_t*> masks_;           // by place
  std::vector<uint32_t> wanted_;                 // ids that any row wants
};

}  // namespace rt
