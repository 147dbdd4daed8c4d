#pragma once

#include <cstdint>

#include "operators/product/cut.h"
#include "operators/product/product.h"

namespace zero::product {

/// Asks for the lines of a part of a side that is packed or multiplied later, some with each step of what is
/// computed before.
class Prefetch {
 public:
  Prefetch() = default;
  /// Rows [row, row + rows) and [k, k + depth) of each, within `steps` steps.
  [[gnu::always_inline]] Prefetch(const Bf16Side& side, int64_t row, int64_t rows, int64_t k, int64_t depth,
                                  int64_t steps) {
    if (rows <= 0 || depth <= 0) return;
    at_ = reinterpret_cast<const char*>(side.data +
                                        (side.along_k ? row * side.stride + k : k * side.stride + row));
    stride_bytes_ = side.stride * kElement;
    lines_ = blocks((side.along_k ? depth : rows) * kElement, kLine);
    left_ = side.along_k ? rows : depth;
    each_step_ = blocks(lines_ * left_, steps);
  }

  [[gnu::always_inline]] void step() {
    for (int64_t i = 0; i < each_step_ && left_ > 0; ++i) {
      __builtin_prefetch(at_ + line_ * kLine, 0, 2);  // into the second-level cache
      if (++line_ < lines_) continue;
      line_ = 0;
      at_ += stride_bytes_;
      --left_;
    }
  }

 private:
  static constexpr int64_t kLine = 64, kElement = sizeof(uint16_t);

  const char* at_ = nullptr;
  int64_t stride_bytes_ = 0, lines_ = 0, left_ = 0, line_ = 0, each_step_ = 0;
};

}  // namespace zero::product
