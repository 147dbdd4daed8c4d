#include "operators/gelu.h"

#include <ATen/ops/empty_like.h>

#include "compute/parallel.h"
#include "operators/gelu_loops.h"

namespace zero::detail {
namespace {

constexpr int64_t kGrain = 1 << 14;

/// Calls work(element type, begin, end) on pieces.
template <class Work>
void on_pieces(const at::Tensor& x, const Work& work) {
  const bool half = x.scalar_type() == at::kBFloat16;
  parallel_over(x.view({-1}), kGrain, [&](int64_t begin, int64_t end) {
    half ? work(Bf16{}, begin, end) : work(float{}, begin, end);
  });
}

template <class T>
T* values(const at::Tensor& tensor, int64_t begin) {
  return static_cast<T*>(tensor.data_ptr()) + begin;
}

}  // namespace

bool has_fast_gelu(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.is_cpu() && x.is_contiguous() && x.numel() > 0 &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor fast_gelu(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  on_pieces(x, [&](auto element, int64_t begin, int64_t end) {
    using T = decltype(element);
    tanh_gelu(values<T>(x, begin), values<T>(y, begin), end - begin);
  });
  return y;
}

at::Tensor fast_gelu_backward(const at::Tensor& upstream, const at::Tensor& x) {
  const at::Tensor gradient = upstream.contiguous();
  at::Tensor out = at::empty_like(x);
  on_pieces(x, [&](auto element, int64_t begin, int64_t end) {
    using T = decltype(element);
    tanh_gelu_backward(values<T>(x, begin), values<T>(gradient, begin), values<T>(out, begin), end - begin);
  });
  return out;
}

}  // namespace zero::detail
