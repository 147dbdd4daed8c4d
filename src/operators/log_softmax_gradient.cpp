#include "operators/log_softmax_gradient.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cmath>

#include "compute/parallel.h"
#include "operators/exp_loops.h"

namespace zero::detail {
namespace {

/// Calls work(element type, row) for all rows of x.
template <class Work>
void on_rows(const at::Tensor& x, const Work& work) {
  const bool half = x.scalar_type() == at::kBFloat16;
  const at::Tensor rows = at::empty({x.numel() / x.size(-1)}, at::kChar);
  parallel_over(rows, /*grain=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) half ? work(Bf16{}, row) : work(float{}, row);
  });
}

template <class T>
T* row_of(const at::Tensor& x, int64_t row) {
  return static_cast<T*>(x.data_ptr()) + row * x.size(-1);
}

}  // namespace

bool has_log_softmax_gradient(const at::Tensor& x) {
  return x.layout() == at::kStrided && x.is_cpu() && x.dim() > 0 && x.numel() > 0 && x.is_contiguous() &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor log_softmax_gradient(const at::Tensor& log_probabilities, const at::Tensor& targets,
                                const at::Tensor& values) {
  at::Tensor out = at::empty_like(log_probabilities);
  const int64_t classes = log_probabilities.size(-1);
  const auto* target = targets.const_data_ptr<int64_t>();
  const auto* value = values.const_data_ptr<float>();
  on_rows(log_probabilities, [&](auto element, int64_t row) {
    using T = decltype(element);
    T* to = row_of<T>(out, row);
    const T* from = row_of<T>(log_probabilities, row);
    scaled_exp(from, to, classes, 0 - value[row]);
    if (value[row] == 0) return;
    const int64_t at = target[row];
    store(to[at], value[row] * (1 - std::exp(to_float(from[at]))));
  });
  return out;
}

}  // namespace zero::detail
