#pragma once
// The inner loop of a sum over ranks, on raw memory.

#include <cstdint>
#include <vector>

#include "base/processor.h"

namespace zero::detail {

/// out[i] = rows[0][i] + rows[1][i] + ... in fp32 from left to right, for i in [begin, end); with
/// `accumulate` that sum is added to out[i]. Rows are fp32, or bf16 as its 16 bits. No row overlaps `out`.
/// Long sums pass over `pages` side by side. The same bits on every processor.
void add_rows(float* out, const std::vector<const float*>& rows, int64_t begin, int64_t end, bool accumulate,
              int pages = pages_side_by_side());
void add_rows(float* out, const std::vector<const uint16_t*>& rows, int64_t begin, int64_t end,
              bool accumulate, int pages = pages_side_by_side());

}  // namespace zero::detail
