#include "operators/log_softmax.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "compute/parallel.h"
#include "operators/cross_entropy.h"

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

bool has_fast_log_softmax(const at::Tensor& x) {
  return x.is_cpu() && x.dim() > 0 && x.numel() > 0 && x.is_contiguous() &&
         (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

at::Tensor fast_log_softmax(const at::Tensor& x) {
  at::Tensor out = at::empty_like(x);
  const int64_t classes = x.size(-1);
  on_rows(x, [&](auto element, int64_t row) {
    using T = decltype(element);
    const T* logits = row_of<T>(x, row);
    log_softmax_row(logits, row_of<T>(out, row), classes, log_sum_exp(logits, classes));
  });
  return out;
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
    if (value[row] == 0) return static_cast<void>(std::fill_n(to, classes, T{}));
    const T* from = row_of<T>(log_probabilities, row);
    scaled_exp(from, to, classes, -value[row]);
    const int64_t at = target[row];
    store(to[at], value[row] * (1 - std::exp(to_float(from[at]))));
  });
  return out;
}

}  // namespace zero::detail
