#include <algorithm>

#include "model.h"

namespace rt {

void Workspace::reserve_scratch(int n_threads, int64_t widest) {
  thread_panels.resize(static_cast<size_t>(n_threads));
  while (static_cast<int>(scratch.size()) < n_threads) scratch.push_back(new ThreadScratch());
  for (int i = 0; i < n_threads; ++i) {
    thread_panels[i].reserve(2 * widened_panel_bytes(widest));
    scratch[i]->panels = thread_panels[i].as<uint8_t>();
  }
}

void Workspace::ActivationMemory::reserve(int m, int k, uint32_t formats, int wide_rows) {
  const int rows = std::max(m, 1);
  if ((formats & kActQ8) && rows >= wide_rows) formats |= kActWide;
  view.formats = formats;
  view.k = k;
  view.k_padded = static_cast<int>(round_up(k, kKBlock));
  view.tile_rows = rows < kTileRows ? rows : kTileRows;
  const size_t padded_rows = static_cast<size_t>(round_up(rows, view.tile_rows));
  const size_t elements = padded_rows * static_cast<size_t>(view.k_padded);
  const size_t blocks = elements / kKBlock;
  if (formats & kActBf16) bf16.reserve(elements * 2 + 4096);
  if (formats & kActF32) f32.reserve(elements * 4);
  if (formats & kActQ8) {
    q8.reserve(elements + 4096);
    q8_scale.reserve(blocks * 4 + 4096);
    q8_sum.reserve(blocks * 4 + 4096);
    q8_half_sum.reserve(blocks * 8 + 4096);
  }
  if (formats & kActWide) wide.reserve(elements * 2 + 4096);
  if (formats & kActRowQ8) {
    row_q8.reserve(padded_rows * static_cast<size_t>(round_up(k, 64)) + 4096);
    row_scale.reserve(padded_rows * 4);
  }
  view.bf16 = bf16.as<uint16_t>();
  view.f32 = f32.as<float>();
  view.q8 = q8.as<int8_t>();
  view.q8_scale = q8_scale.as<float>();
  view.q8_sum = q8_sum.as<float>();
  view.q8_half_sum = q8_half_sum.as<float>();
  view.wide = wide.as<uint16_t>();
  view.row_q8 = row_q8.as<int8_t>();
  view.row_scale = row_scale.as<float>();
}

}  // namespace rt
