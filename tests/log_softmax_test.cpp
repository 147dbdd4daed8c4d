// Rows of a log-softmax and the gradient of one element each.
#include "operators/log_softmax.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace {
using at::Tensor;
namespace detail = zero::detail;

constexpr int64_t kClasses = 201;

double difference_of(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

TEST(LogSoftmax, EqualsLibTorchs) {
  at::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor x = (at::randn({9, kClasses}) * 4).to(dtype),
                 wanted = at::log_softmax(x.to(at::kDouble), -1);
    ASSERT_TRUE(detail::has_fast_log_softmax(x));
    const double tolerance = dtype == at::kFloat ? 4e-6 : 0.0626;  // half a unit in the last place
    EXPECT_LT(difference_of(detail::fast_log_softmax(x), wanted), tolerance);
    EXPECT_LT(difference_of(detail::fast_log_softmax(x.view({3, 3, kClasses})).view_as(wanted), wanted),
              tolerance);
    EXPECT_EQ(detail::fast_log_softmax(x).scalar_type(), dtype);
  }
  Tensor strange = at::zeros({4, 70});
  strange[0][3] = std::numeric_limits<float>::quiet_NaN();
  strange[1][69] = std::numeric_limits<float>::infinity();
  strange[2][5] = -std::numeric_limits<float>::infinity();
  const Tensor out = detail::fast_log_softmax(strange);
  EXPECT_TRUE(out[0].isnan().all().item<bool>());
  EXPECT_TRUE(out[1].isnan().any().item<bool>());
  EXPECT_TRUE(at::allclose(out[2], at::log_softmax(strange[2], 0)));
  EXPECT_TRUE(at::allclose(out[3], at::log_softmax(strange[3], 0)));
  for (const Tensor& x :
       {at::zeros({3, 4}).t(), at::zeros({3, 0}), at::zeros({3, 4}, at::kDouble), at::zeros({})})
    EXPECT_FALSE(detail::has_fast_log_softmax(x));
}

TEST(LogSoftmax, GradientOfOneElementARow) {
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
}  // namespace
