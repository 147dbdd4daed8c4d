#include "operators/column_sums_loops.h"

#include <algorithm>

namespace zero::detail {
namespace {

constexpr int64_t kColumns = 1024;  // at a time: their sums stay in the first-level cache

}  // namespace

ZERO_VECTOR_VERSIONS void sum_columns(const Bf16* x, int64_t rows, int64_t stride, Bf16* out,
                                      int64_t columns) {
  alignas(64) float sums[kColumns];
  for (int64_t begin = 0; begin < columns; begin += kColumns) {
    const int64_t n = std::min(kColumns, columns - begin);
    std::fill(sums, sums + n, 0.0F);
    for (int64_t row = 0; row < rows; ++row) {
      const Bf16* __restrict line = x + row * stride + begin;
      for (int64_t i = 0; i < n; ++i) sums[i] += to_float(line[i]);
    }
    for (int64_t i = 0; i < n; ++i) store(out[begin + i], sums[i]);
  }
}

}  // namespace zero::detail
