#pragma once
// Integer arithmetic on numbers that come from outside: an overflow is told, never wrapped.

#include <cstddef>
#include <cstdint>
#include <optional>

namespace zero {

inline std::optional<int64_t> checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<int64_t> checked_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Smallest multiple of `step` that is not below `value`. Both non-negative, step > 0, no overflow.
inline int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }
inline size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

}  // namespace zero
