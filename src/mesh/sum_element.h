#pragma once
// One element of a sum over ranks, for any processor: the arithmetic exists once.

#include <cstdint>
#include <cstring>

#include "base/any_device.h"

namespace zero::detail {

ZERO_ANY_DEVICE [[gnu::always_inline]] inline float widened(float value) { return value; }
/// bf16 as its 16 bits.
ZERO_ANY_DEVICE [[gnu::always_inline]] inline float widened(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

/// rows[0][i] + rows[1][i] + ... in fp32, from left to right.
template <class In>
ZERO_ANY_DEVICE float sum_in_rank_order(const In* const* rows, int count, int64_t i) {
  float sum = widened(rows[0][i]);
  for (int row = 1; row < count; ++row) sum += widened(rows[row][i]);
  return sum;
}

}  // namespace zero::detail
