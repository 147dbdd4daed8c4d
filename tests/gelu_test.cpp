// The fused GELU against LibTorch's, forward and backward.
#include "operators/gelu.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace zero {
namespace {

at::Tensor inputs() {
  at::manual_seed(3);
  const at::Tensor edges = at::tensor({0.0F, -0.0F, 1e-30F, -1e-30F, 0.5F, -0.5F, 5.0F, -5.0F, 10.0F, -10.0F,
                                       40.0F, -40.0F, 1e4F, -1e4F, 1e18F, -1e18F});
  return at::cat({edges, at::randn({1001}) * 3});
}

/// The value and its gradient for an upstream gradient of `upstream`: ours.
std::pair<at::Tensor, at::Tensor> both(const at::Tensor& x, const at::Tensor& upstream) {
  return {detail::fast_gelu(x), detail::fast_gelu_backward(upstream, x)};
}

/// In fp64, where the reference's own rounding does not count.
std::pair<at::Tensor, at::Tensor> reference(const at::Tensor& x, const at::Tensor& upstream) {
  const at::Tensor exact = x.to(at::kDouble);
  return {at::gelu(exact, "tanh"), at::gelu_backward(upstream.to(at::kDouble), exact, "tanh")};
}

TEST(TanhGelu, EqualsLibTorchsInFp32) {
  const at::Tensor x = inputs(), upstream = at::randn_like(x);
  const auto [y, dx] = both(x, upstream);
  const auto [wanted, wanted_dx] = reference(x, upstream);
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), wanted, 2e-6, 1e-7));
  // 1e18 cubed is beyond fp32, where the slope is 1 or 0 all the same.
  const at::Tensor inside = x.abs() < 1e12;
  EXPECT_TRUE(
      at::allclose(dx.masked_select(inside).to(at::kDouble), wanted_dx.masked_select(inside), 1e-5, 2e-6));
}

TEST(TanhGelu, EqualsLibTorchsInBf16) {
  const at::Tensor x = inputs().to(at::kBFloat16), upstream = at::randn_like(x);
  const auto [y, dx] = both(x, upstream);
  const auto [wanted, wanted_dx] = reference(x, upstream);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), wanted, 1.0 / 256, 1e-6));
  const at::Tensor inside = x.abs() < 1e12;
  EXPECT_TRUE(at::allclose(dx.masked_select(inside).to(at::kDouble), wanted_dx.masked_select(inside),
                           1.0 / 128, 1e-5));
}

TEST(TanhGelu, ANaNStaysOne) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    EXPECT_TRUE(detail::fast_gelu(at::tensor({nan, 1.0F}).to(dtype)).isnan()[0].item<bool>());
}

TEST(TanhGelu, OtherLayoutsAndTypesAreLibTorchs) {
  const at::Tensor x = at::randn({6, 5});
  EXPECT_TRUE(detail::has_fast_gelu(x));
  for (const at::Tensor& other : {x.t(), x.to(at::kDouble), at::empty({0, 3}), x.to_sparse()})
    EXPECT_FALSE(detail::has_fast_gelu(other));
}

}  // namespace
}  // namespace zero
