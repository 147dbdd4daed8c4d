#pragma once
// Rows of a softmax cross-entropy over logits, in one read and without a copy in fp32. Bits do not depend on
// the processor: sums run in fixed lanes, and no multiplication is fused with an addition.

#include <bit>
#include <cstdint>

namespace zero::detail {

/// An element of bf16, by its bits.
struct Bf16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }
inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }

/// To nearest, ties to even; a NaN stays one.
inline void store(float& to, float x) { to = x; }
inline void store(Bf16& to, float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  to.bits = static_cast<uint16_t>(x != x ? 0x7fc0 : rounded);
}

/// log(sum(exp(logits))) of n >= 1 logits; NaN if one is NaN or +inf.
float log_sum_exp(const float* logits, int64_t n);
float log_sum_exp(const Bf16* logits, int64_t n);

/// logits[i] = scale * exp(logits[i] - log_sum_exp): the gradient of a row but for its target.
void scaled_softmax(float* logits, int64_t n, float log_sum_exp, float scale);
void scaled_softmax(Bf16* logits, int64_t n, float log_sum_exp, float scale);

}  // namespace zero::detail
