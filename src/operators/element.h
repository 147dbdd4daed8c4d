#pragma once
// Elements of fp32 and bf16 for loops of our own, and what those of a softmax share.

#include <bit>
#include <cstdint>

#include "base/vector_versions.h"

namespace zero::detail {

/// An element of bf16, by its bits.
struct Bf16 {
  uint16_t bits;
};

ZERO_INLINE float to_float(float x) { return x; }
ZERO_INLINE float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

/// To nearest, ties to even; a NaN stays one.
ZERO_INLINE void store(float& to, float x) { to = x; }
ZERO_INLINE void store(Bf16& to, float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to.bits = static_cast<uint16_t>(x != x ? 0x7fc0 : rounded);
}

/// exp(x - n ln 2) for |x - n ln 2| <= ln 2 / 2; of a float or of a vector of them.
template <class V>
ZERO_INLINE V exp_reduced(V x, V n) {
  const V r = x - n * 0.693359375F - n * -2.12194440e-4F;
  V p = r * 1.9875691500e-4F + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  return p * r * r + r + 1.0F;
}

/// exp(x) for x <= 0 to about 2e-7 relative; below -87 it is 0. Cephes' reduction and polynomial (expf).
ZERO_INLINE float exp_of(float x) {
  const float inside = x < -87.0F ? -87.0F : x;
  const float shifted = inside * 1.44269504F + 12582912.0F;  // rounds to an integer in the low bits
  const float n = shifted - 12582912.0F;
  const auto power = static_cast<uint32_t>(std::bit_cast<int32_t>(shifted) - 0x4b400000 + 127) << 23;
  const float result = exp_reduced(inside, n) * std::bit_cast<float>(power);
  return x < -87.0F ? 0.0F : result;
}

/// The greatest of n elements that is not NaN; -inf where there is none.
template <class T>
ZERO_INLINE float greatest(const T* values, int64_t n) {
  constexpr int64_t kLanes = 64;
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = -__builtin_inff();
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t at = 0; at < whole; at += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) {
      const float x = to_float(values[at + i]);
      lanes[i] = x > lanes[i] ? x : lanes[i];
    }
  for (int64_t at = whole; at < n; ++at) {
    const float x = to_float(values[at]);
    lanes[at - whole] = x > lanes[at - whole] ? x : lanes[at - whole];
  }
  float most = lanes[0];
  for (int64_t i = 1; i < kLanes; ++i) most = lanes[i] > most ? lanes[i] : most;
  return most;
}

}  // namespace zero::detail
