// ggml block formats as they stand in a GGUF file.
#pragma once

#include <cstdint>

namespace rt {

float f16_value(uint16_t h);

// Values and bytes of one block; 1 and 0 for a dtype that is not a known block format.
int64_t block_values(int32_t dtype);
int64_t block_bytes(int32_t dtype);

void dequantise_row(const uint8_t* blocks, int32_t dtype, int64_t cols, float* out);

}  // namespace rt
