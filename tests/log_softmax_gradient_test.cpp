// The gradient of a log-softmax of which one element a row is used.
#include "operators/log_softmax_gradient.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace {
using at::Tensor;
namespace detail = zero::detail;

double difference_of(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(LogSoftmaxGradient, OfOneElementARow) {
  at::manual_seed(2);
  const Tensor p = at::log_softmax(at::randn({5, 77}), -1), targets = at::randint(0, 77, {5});
  const Tensor values = at::tensor({1.0F, -2.0F, 0.0F, 0.5F, -1e-3F});
  const Tensor upstream =
      at::zeros({5, 77}, at::kDouble).scatter(1, targets.unsqueeze(1), values.to(at::kDouble).unsqueeze(1));
  const Tensor wanted = at::_log_softmax_backward_data(upstream, p.to(at::kDouble), 1, at::kDouble);
  EXPECT_LT(difference_of(detail::log_softmax_gradient(p, targets, values), wanted), 1e-6);
  // Where nothing comes, the target is not looked at.
  Tensor nowhere = targets.clone();
  nowhere[2] = -100;
  EXPECT_LT(difference_of(detail::log_softmax_gradient(p, nowhere, values), wanted), 1e-6);
}

// A row without a gradient is multiplied by 0 as LibTorch does it: NaN stays NaN.
TEST(LogSoftmaxGradient, OfRowsOfNaNIsNaN) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Tensor p = at::log_softmax(at::randn({3, 70}), -1).to(dtype);
    p.narrow(0, 1, 2).fill_(std::numeric_limits<float>::quiet_NaN());
    const Tensor targets = at::tensor({5, -100, 6}, at::kLong), values = at::tensor({0.0F, 0.0F, 1.0F});
    const Tensor gradient = detail::log_softmax_gradient(p, targets, values);
    EXPECT_EQ(gradient[0].count_nonzero().item<int64_t>(), 0);
    EXPECT_TRUE(gradient.narrow(0, 1, 2).isnan().all().item<bool>());
  }
}

TEST(LogSoftmaxGradient, TakesRowsOfPlainMemory) {
  EXPECT_TRUE(detail::has_log_softmax_gradient(at::zeros({3, 4})));
  for (const Tensor& x : {at::zeros({3, 4}).t(), at::zeros({3, 0}), at::zeros({3, 4}, at::kDouble),
                          at::zeros({}), at::eye(4).to_sparse(), at::eye(4).to_sparse_csr()})
    EXPECT_FALSE(detail::has_log_softmax_gradient(x));
}
}  // namespace
