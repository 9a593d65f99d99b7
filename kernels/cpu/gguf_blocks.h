// ggml block formats as they stand in a GGUF file.
#pragma once

#include <cstdint>

namespace rt {

float f16_value(uint16_t h);

// What a block says of its up to 256 values:
//   value k = d * scale[k / group] * (q[k] - zero) + m * min[k / group]
// d and m are the file's f16 bits; the sign of m is that of the formula above. Formats without
// inner scales have ones.
struct BlockParts {
  uint8_t q[256];
  int8_t scale[16];
  uint8_t min[16];
  uint16_t d, m;
};

// Values and bytes of one block; 1 and 0 for a dtype that is not a known block format.
int64_t block_values(int32_t dtype);
int64_t block_bytes(int32_t dtype);

void read_block(const uint8_t* block, int32_t dtype, BlockParts* parts);

}  // namespace rt
