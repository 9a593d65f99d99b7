// From a caller's matrix to a PackedWeight, and single rows back (embedding lookup).
#pragma once

#include <cstdint>

#include "abi.h"
#include "linear.h"
#include "thread_pool.h"

namespace rt {

// Kind a source of this dtype is kept in; kNone when the combination does not exist.
WeightKind weight_kind(int32_t dtype, int32_t weight_format, int32_t compute_dtype);

uint32_t activation_format(WeightKind kind);

// Bytes of one source row of `cols` values.
int64_t source_row_bytes(int32_t dtype, int64_t cols);

// Values of one source row as f32; block formats are dequantised.
void read_source_row(const void* data, int32_t dtype, int64_t row, int64_t cols, float* out);

PackedWeight pack_weight(const void* data, int32_t dtype, int64_t rows, int64_t cols,
                         WeightKind kind, ThreadPool& pool, Arena& arena);

// Row n of the original matrix as f32 (out: k values).
void unpack_row(const PackedWeight& weight, int64_t n, float* out);

}  // namespace rt
