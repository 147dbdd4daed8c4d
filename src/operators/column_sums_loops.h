#pragma once
// The loop of column_sums.h. The same bits on every processor.

#include <cstdint>

#include "operators/element.h"

namespace zero::detail {

/// out[j] = x[0 * stride + j] + x[1 * stride + j] + ... over `rows`, in fp32 from the first to the last,
/// rounded once.
void sum_columns(const Bf16* x, int64_t rows, int64_t stride, Bf16* out, int64_t columns);

}  // namespace zero::detail
