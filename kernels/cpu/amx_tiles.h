// AMX tile configuration. Eight tiles of 16 rows x 64 bytes, except where fewer rows are in use.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "linear.h"
#include "simd.h"

namespace rt {
namespace RT_ISA {

struct alignas(64) TileConfig {
  uint8_t palette, start_row, reserved[14];
  uint16_t bytes_per_row[16];
  uint8_t rows[16];
};

// Names a configuration: rows of (0, 2, 4) and of (1, 3, 5) as the 32 x 32 kernel wants them when
// `second` differs, or one height for tiles 0..4 when the row block is a single tile.
RT_INLINE uint64_t tile_shape(int first, int second) {
  return static_cast<uint64_t>(first) << 8 | static_cast<uint64_t>(second);
}

// Sums in tiles 0..3, halves of a tile's K in the others: 16 rows x 32 bytes in 4 and 5, 8 x 64 in
// 6 and 7.
constexpr uint64_t kHalfDepth = 1 << 16;

RT_INLINE void configure(ThreadScratch& scratch, uint64_t shape) {
  if (scratch.tile_config == shape) return;
  const int first = static_cast<int>(shape >> 8), second = static_cast<int>(shape & 0xff);
  TileConfig config;
  memset(&config, 0, sizeof config);
  config.palette = 1;
  for (int t = 0; t < 8; ++t) {
    config.bytes_per_row[t] = 64;
    config.rows[t] = 16;
  }
  if (shape == kHalfDepth) {
    config.bytes_per_row[4] = config.bytes_per_row[5] = 32;
    config.rows[6] = config.rows[7] = 8;
  } else if (first == second) {
    for (int t = 0; t < 5; ++t) config.rows[t] = static_cast<uint8_t>(first);
  } else {
    config.rows[1] = config.rows[3] = config.rows[5] = static_cast<uint8_t>(second);
  }
  // gcc 12 declares only 8 of the 64 bytes as read and would drop the stores above.
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
  scratch.tile_config = shape;
}

}  // namespace RT_ISA
}  // namespace rt
