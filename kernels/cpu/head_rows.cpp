#include "head_rows.h"

namespace rt {
namespace {

struct LegalIds {
  int count;
  int last;
};

uint32_t mask_word(const uint32_t* mask, int word, int vocab_size) {
  const int left = vocab_size - word * 32;
  return left >= 32 ? mask[word] : mask[word] & ((1u << left) - 1);
}

LegalIds count_legal(const uint32_t* mask, int vocab_size) {
  LegalIds legal{0, 0};
  for (int word = 0; word * 32 < vocab_size; ++word) {
    const uint32_t bits = mask_word(mask, word, vocab_size);
    if (bits == 0) continue;
    legal.count += __builtin_popcount(bits);
    legal.last = word * 32 + 31 - __builtin_clz(bits);
  }
  return legal;
}

}  // namespace

void HeadRows::build(const RtStep& step, int vocab_size) {
  const int rows = step.num_logit_tokens, num_panels = (vocab_size + kPanel - 1) / kPanel;
  place.assign(static_cast<size_t>(rows), 0);
  units.clear();
  num_full = rows;
  if (step.allowed_ids == nullptr || step.logits == nullptr) {
    masks_.assign(static_cast<size_t>(rows), nullptr);
    for (int i = 0; i < rows; ++i) place[static_cast<size_t>(i)] = i;
    return;
  }
  num_legal_.clear();
  last_legal_.clear();
  for (int i = 0; i < rows; ++i) {
    const uint32_t* mask = step.allowed_ids[i];
    const LegalIds legal = mask == nullptr ? LegalIds{0, 0} : count_legal(mask, vocab_size);
    num_legal_.push_back(legal.count);
    last_legal_.push_back(legal.last);
  }
  for (const int few_ids : kFewLegalIds) {
    part_rows(step, vocab_size, few_ids);
    if (!touches_most_panels(num_panels)) break;
  }
  for (int i = 0; i < rows; ++i) {
    const int32_t at = place[static_cast<size_t>(i)];
    step.logit_rows[i] = at;
    // Chosen whatever its logit.
    if (num_legal_[static_cast<size_t>(i)] == 1)
      step.logits[at * step.logits_stride + last_legal_[static_cast<size_t>(i)]] = 0.0f;
  }
  add_units(num_panels);
}

// Rows of 1 to few_ids legal ids go behind the others.
void HeadRows::part_rows(const RtStep& step, int vocab_size, int few_ids) {
  const int rows = step.num_logit_tokens, words = (vocab_size + 31) / 32;
  masks_.assign(static_cast<size_t>(rows), nullptr);
  wanted_.assign(static_cast<size_t>(words), 0);
  int full = 0, few = rows;  // the next place from the front and from the back
  for (int i = 0; i < rows; ++i) {
    const int count = num_legal_[static_cast<size_t>(i)];
    const bool is_few = count > 0 && count <= few_ids;
    const int at = is_few ? --few : full++;
    place[static_cast<size_t>(i)] = at;
    if (!is_few || count == 1) continue;
    const uint32_t* mask = step.allowed_ids[i];
    masks_[static_cast<size_t>(at)] = mask;
    for (int word = 0; word < words; ++word)
      wanted_[static_cast<size_t>(word)] |= mask_word(mask, word, vocab_size);
  }
  num_full = full;
}

bool HeadRows::touches_most_panels(int num_panels) const {
  int touched = 0;
  for (const uint32_t word : wanted_) touched += ((word & 0xffffu) != 0) + (word >> kPanel != 0);
  return touched > num_panels / 2;
}

void HeadRows::add_units(int num_panels) {
  const int rows = static_cast<int>(place.size());
  for (int panel = 0; panel < num_panels; ++panel) {
    const uint32_t either = wanted_[static_cast<size_t>(panel / 2)] >> (panel % 2 * kPanel);
    if ((either & 0xffffu) == 0) continue;
    int open = -1;  // the unit of the current tile of rows
    for (int row = num_full; row < rows; ++row) {
      if (columns(row, panel) == 0) continue;
      const bool same = open >= 0 && units[static_cast<size_t>(open)].row_begin / kTileRows ==
                                         row / kTileRows;
      if (!same) {
        open = static_cast<int>(units.size());
        units.push_back({panel, row, row + 1});
      }
      units[static_cast<size_t>(open)].row_end = row + 1;
    }
  }
}

}  // namespace rt
