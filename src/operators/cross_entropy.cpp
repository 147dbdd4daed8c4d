#include "operators/cross_entropy.h"

#include <cmath>
#include <limits>

#include "operators/element.h"

namespace zero::detail {
namespace {

constexpr int64_t kLanes = 64;

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

template <class T>
ZERO_INLINE void minus(const T* logits, T* out, int64_t n, float log_sum_exp) {
  for (int64_t i = 0; i < n; ++i) store(out[i], to_float(logits[i]) - log_sum_exp);
}

template <class T>
ZERO_INLINE void exponentials(const T* log_probabilities, T* out, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) store(out[i], scale * exp_of(to_float(log_probabilities[i])));
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
ZERO_VECTOR_VERSIONS void log_softmax_row(const float* logits, float* out, int64_t n, float log_sum_exp) {
  minus(logits, out, n, log_sum_exp);
}
ZERO_VECTOR_VERSIONS void log_softmax_row(const Bf16* logits, Bf16* out, int64_t n, float log_sum_exp) {
  minus(logits, out, n, log_sum_exp);
}
ZERO_VECTOR_VERSIONS void scaled_exp(const float* log_probabilities, float* out, int64_t n, float scale) {
  exponentials(log_probabilities, out, n, scale);
}
ZERO_VECTOR_VERSIONS void scaled_exp(const Bf16* log_probabilities, Bf16* out, int64_t n, float scale) {
  exponentials(log_probabilities, out, n, scale);
}

}  // namespace zero::detail
