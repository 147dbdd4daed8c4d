#include "models/cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/vector_versions.h"

namespace zero::detail {
namespace {

constexpr int64_t kLanes = 64;

// exp(x) for x <= 0 to about 2e-7 relative; below -87 it is 0. Cephes' reduction and polynomial (expf).
ZERO_INLINE float exp_of(float x) {
  const float inside = x < -87.0F ? -87.0F : x;
  const float shifted = inside * 1.44269504F + 12582912.0F;  // rounds to an integer in the low bits
  const float n = shifted - 12582912.0F;
  const float r = inside - n * 0.693359375F - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  const auto power = static_cast<uint32_t>(std::bit_cast<int32_t>(shifted) - 0x4b400000 + 127) << 23;
  const float result = p * std::bit_cast<float>(power);
  return x < -87.0F ? 0.0F : result;
}

template <class T>
ZERO_INLINE float greatest(const T* logits, int64_t n) {
  float lanes[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) lanes[i] = -std::numeric_limits<float>::infinity();
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t at = 0; at < whole; at += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) {
      const float x = to_float(logits[at + i]);
      lanes[i] = x > lanes[i] ? x : lanes[i];
    }
  for (int64_t at = whole; at < n; ++at) lanes[0] = std::max(lanes[0], to_float(logits[at]));
  return *std::max_element(lanes, lanes + kLanes);
}

template <class T>
ZERO_INLINE float log_sum(const T* logits, int64_t n) {
  const float most = greatest(logits, n);
  if (!std::isfinite(most)) return most < 0 ? most : std::numeric_limits<float>::quiet_NaN();
  float lanes[kLanes] = {};
  const int64_t whole = n / kLanes * kLanes;
  for (int64_t at = 0; at < whole; at += kLanes)
    for (int64_t i = 0; i < kLanes; ++i) lanes[i] += exp_of(to_float(logits[at + i]) - most);
  for (int64_t at = whole; at < n; ++at) lanes[at - whole] += exp_of(to_float(logits[at]) - most);
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  return static_cast<float>(static_cast<double>(most) + std::log(sum));
}

template <class T>
ZERO_INLINE void softmax(T* logits, int64_t n, float log_sum_exp, float scale) {
  for (int64_t i = 0; i < n; ++i) store(logits[i], scale * exp_of(to_float(logits[i]) - log_sum_exp));
}

}  // namespace

ZERO_VECTOR_VERSIONS float log_sum_exp(const float* logits, int64_t n) { return log_sum(logits, n); }
ZERO_VECTOR_VERSIONS float log_sum_exp(const Bf16* logits, int64_t n) { return log_sum(logits, n); }
ZERO_VECTOR_VERSIONS void scaled_softmax(float* logits, int64_t n, float log_sum_exp, float scale) {
  softmax(logits, n, log_sum_exp, scale);
}
ZERO_VECTOR_VERSIONS void scaled_softmax(Bf16* logits, int64_t n, float log_sum_exp, float scale) {
  softmax(logits, n, log_sum_exp, scale);
}

}  // namespace zero::detail
