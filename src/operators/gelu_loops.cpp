#include "operators/gelu_loops.h"

namespace zero::detail {
namespace {

// x/2 (1 + tanh(u)) = x s(2u), with the logistic function s and 2u = x (kLinear + kCubic x^2).
constexpr float kLinear = 1.5957691216F;             // 2 sqrt(2 / pi)
constexpr float kCubic = 1.5957691216F * 0.044715F;  // and 0.044715 times that

ZERO_INLINE float logistic(float z) {
  const float e = exp_of(z < 0 ? z : -z);
  return (z < 0 ? e : 1.0F) / (1.0F + e);
}

template <class T>
ZERO_INLINE void forward(const T* x, T* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = to_float(x[i]);
    store(y[i], v * logistic(v * (kLinear + kCubic * v * v)));
  }
}

template <class T>
ZERO_INLINE void backward(const T* x, const T* gradient, T* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = to_float(x[i]), square = v * v;
    const float s = logistic(v * (kLinear + kCubic * square));
    const float slope = s + v * s * (1.0F - s) * (kLinear + 3.0F * kCubic * square);
    store(out[i], to_float(gradient[i]) * slope);
  }
}

}  // namespace

ZERO_VECTOR_VERSIONS void tanh_gelu(const float* x, float* y, int64_t n) { forward(x, y, n); }
ZERO_VECTOR_VERSIONS void tanh_gelu(const Bf16* x, Bf16* y, int64_t n) { forward(x, y, n); }
ZERO_VECTOR_VERSIONS void tanh_gelu_backward(const float* x, const float* gradient, float* out, int64_t n) {
  backward(x, gradient, out, n);
}
ZERO_VECTOR_VERSIONS void tanh_gelu_backward(const Bf16* x, const Bf16* gradient, Bf16* out, int64_t n) {
  backward(x, gradient, out, n);
}

}  // namespace zero::detail
