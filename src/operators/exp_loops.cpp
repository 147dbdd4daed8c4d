#include "operators/exp_loops.h"

namespace zero::detail {
namespace {

template <class T>
ZERO_INLINE void exponentials(const T* log_probabilities, T* out, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) store(out[i], scale * exp_of(to_float(log_probabilities[i])));
}

}  // namespace

ZERO_VECTOR_VERSIONS void scaled_exp(const float* log_probabilities, float* out, int64_t n, float scale) {
  exponentials(log_probabilities, out, n, scale);
}
ZERO_VECTOR_VERSIONS void scaled_exp(const Bf16* log_probabilities, Bf16* out, int64_t n, float scale) {
  exponentials(log_probabilities, out, n, scale);
}

}  // namespace zero::detail
