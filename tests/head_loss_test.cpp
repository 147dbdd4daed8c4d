// The cross-entropy above a head, some rows at a time, against the operators that it stands for.
#include "models/head_loss.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <limits>
#include <vector>

namespace zero {
namespace {

using torch::Tensor;

Tensor reference(const Tensor& hidden, const Tensor& weight, const Tensor& targets) {
  const auto dtype = weight.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return torch::nll_loss(torch::log_softmax(torch::linear(hidden, weight), 1, dtype), targets);
}

Tensor loss_of(const Tensor& hidden, const Tensor& weight, const Tensor& targets, bool ours,
               int64_t rows_at_a_time = 0) {
  return ours ? detail::head_loss(hidden, weight, targets, rows_at_a_time)
              : reference(hidden, weight, targets);
}

// A weight that is the embedding, too.
TEST(HeadLoss, EqualsLinearAndCrossEntropy) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble})
    for (const int64_t rows_at_a_time : {0, 5}) {
      torch::manual_seed(3);
      const auto values = (torch::randn({97, 24}) * 0.3).to(dtype);
      const auto tokens = torch::randint(97, {2, 9}), targets = torch::randint(97, {18});
      targets[4] = -100;
      auto run = [&](bool ours) {
        auto weight = values.clone().requires_grad_(), scale = torch::full({24}, 1.5, dtype).requires_grad_();
        const auto hidden = (torch::embedding(weight, tokens) * scale).view({18, 24});
        const Tensor loss = loss_of(hidden, weight, targets, ours, rows_at_a_time);
        (loss * 2).backward();
        return std::vector<Tensor>{loss.detach(), weight.grad().to(torch::kDouble),
                                   scale.grad().to(torch::kDouble)};
      };
      const auto expected = run(false), got = run(true);
      EXPECT_EQ(got[0].scalar_type(), expected[0].scalar_type());
      const double tolerance = dtype == torch::kBFloat16 ? 2e-2 : dtype == torch::kFloat ? 1e-5 : 1e-12;
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(torch::allclose(got[i], expected[i], tolerance, tolerance * 0.1)) << i << " in " << dtype;
    }
}

// More logits than are widened at a time.
TEST(HeadLoss, OfManyRows) {
  torch::manual_seed(4);
  const auto hidden = torch::randn({40, 8}).requires_grad_(), weight = torch::randn({30000, 8}),
             targets = torch::randint(30000, {40});
  const auto gradient_of = [&](bool ours) {
    return torch::autograd::grad({loss_of(hidden, weight, targets, ours)}, {hidden})[0];
  };
  EXPECT_TRUE(torch::allclose(gradient_of(true), gradient_of(false), 1e-5, 1e-7));
}

TEST(HeadLoss, OfLargeLogits) {
  const auto weight = torch::ones({2, 1}), targets = torch::zeros({1}, torch::kLong);
  for (const float logit : {1e4F, 1e5F, 1e7F}) {
    const auto hidden = torch::full({1, 1}, logit).requires_grad_();
    EXPECT_NEAR(detail::head_loss(hidden, weight, targets).item<float>(), std::log(2.0F), 1e-6F) << logit;
  }
}

TEST(HeadLoss, IgnoredRowsCountNothingAndKeepNaN) {
  torch::manual_seed(5);
  const auto values = torch::randn({4, 6}), weight = torch::randn({9, 6});
  values[1].fill_(std::numeric_limits<float>::quiet_NaN());
  const auto targets = torch::tensor({3, -100, 0, -100}, torch::kLong);
  const auto gradient_of = [&](bool ours) {
    const auto hidden = values.clone().requires_grad_();
    const Tensor loss = loss_of(hidden, weight, targets, ours);
    EXPECT_TRUE(std::isfinite(loss.item<float>()));
    loss.backward();
    return hidden.grad();
  };
  const Tensor got = gradient_of(true), wanted = gradient_of(false);
  EXPECT_TRUE(torch::allclose(got, wanted, 1e-5, 1e-6, /*equal_nan=*/true));
  EXPECT_TRUE(got[1].isnan().all().item<bool>());
  EXPECT_EQ(got[3].count_nonzero().item<int64_t>(), 0);

  const auto hidden = torch::randn({4, 6}).requires_grad_();
  const Tensor none = detail::head_loss(hidden, weight, torch::full({4}, -100, torch::kLong));
  EXPECT_TRUE(std::isnan(none.item<float>()));
  none.backward();
  EXPECT_EQ(hidden.grad().count_nonzero().item<int64_t>(), 0);
}

TEST(HeadLoss, FrozenSidesAndEvaluation) {
  torch::manual_seed(3);
  const auto targets = torch::randint(40, {6});
  for (const bool of_hidden : {true, false}) {
    auto hidden = torch::randn({6, 8}).requires_grad_(of_hidden),
         weight = torch::randn({40, 8}).requires_grad_(!of_hidden);
    const Tensor loss = detail::head_loss(hidden, weight, targets);
    loss.backward();
    EXPECT_EQ(hidden.grad().defined(), of_hidden);
    EXPECT_EQ(weight.grad().defined(), !of_hidden);
    EXPECT_GT((of_hidden ? hidden : weight).grad().abs().sum().item<float>(), 0);
    EXPECT_THROW(loss.backward(), c10::Error);
    const torch::NoGradGuard no_grad;
    const Tensor evaluated = detail::head_loss(hidden, weight, targets);
    EXPECT_FALSE(evaluated.requires_grad());
    EXPECT_EQ(evaluated.item<float>(), loss.item<float>());
  }
}

}  // namespace
}  // namespace zero
