#pragma once
// Sums of fp64 values that are exact, so that neither their order nor where they are cut matters: a value is
// spread over digits of kDigitBits bits, each an fp64 whole number, and digits are added one by one. What is
// added is a block's sum of squares of fp32 values (passes.h): from 2^-298 to 2^265, or not finite.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/any_device.h"

namespace zero::kernels {

inline constexpr int kDigitBits = 28;
inline constexpr int kLeastExponent = -298;  // of the square of the smallest fp32 value
/// Digits of one sum. 2^25 values may be added before one of them is no longer exact.
inline constexpr int kDigits = 21;

/// Adds a value >= 0. One that is not finite makes the sum so.
ZERO_ANY_DEVICE inline void add_exactly(double value, double* digits) {
  if (!(value <= DBL_MAX)) {
    digits[kDigits - 1] += value;
    return;
  }
  if (value == 0) return;
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1, kMask = (uint64_t{1} << kDigitBits) - 1;
  uint64_t mantissa = (bits & kFraction) | (kFraction + 1);
  int at = static_cast<int>(bits >> 52) - 1075 - kLeastExponent;  // of its lowest bit
  if (at < 0) {
    mantissa = at > -64 ? mantissa >> -at : 0;  // zeros: the value is a multiple of the lowest digit
    at = 0;
  }
  const int digit = at / kDigitBits, shift = at % kDigitBits, room = kDigitBits - shift;
  if (digit + 2 >= kDigits) {
    digits[kDigits - 1] += HUGE_VAL;
    return;
  }
  digits[digit] += static_cast<double>((mantissa & ((uint64_t{1} << room) - 1)) << shift);
  digits[digit + 1] += static_cast<double>((mantissa >> room) & kMask);
  digits[digit + 2] += static_cast<double>(mantissa >> room >> kDigitBits);
}

/// Each digit but the last in [0, 2^kDigitBits), the sum the same: then equal sums have equal digits,
/// whatever they were added up from.
ZERO_ANY_DEVICE inline void carry_digits(double* digits) {
  constexpr double kBase = static_cast<double>(int64_t{1} << kDigitBits);
  double carry = 0;
  for (int i = 0; i + 1 < kDigits; ++i) {
    const double digit = digits[i] + carry;
    carry = floor(digit / kBase);
    digits[i] = digit - carry * kBase;
  }
  digits[kDigits - 1] += carry;
}

/// The sum in fp64.
ZERO_ANY_DEVICE inline double total_of(const double* digits) {
  double sum = 0;
  for (int i = 0; i < kDigits; ++i) sum += ldexp(digits[i], kLeastExponent + i * kDigitBits);
  return sum;
}

}  // namespace zero::kernels
