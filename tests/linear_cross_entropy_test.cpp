// The fused loss against torch's cross_entropy(linear()): values, gradients, options, misuse.
#include "zero/linear_cross_entropy.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <cmath>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "zero/cpu_allocator.h"

namespace zero {
namespace {

using torch::Tensor;
using Options = LinearCrossEntropyOptions;
using Reduction = Options::Reduction;
namespace F = torch::nn::functional;

Tensor reference(const Tensor& hidden, const Tensor& weight, const Tensor& targets, const Options& options) {
  const auto dtype = weight.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const Tensor logits = torch::linear(hidden, weight, options.bias).to(dtype).flatten(0, -2);
  F::CrossEntropyFuncOptions wanted;
  wanted.ignore_index(options.ignore_index).label_smoothing(options.label_smoothing);
  if (options.reduction == Reduction::Mean) wanted.reduction(torch::kMean);
  if (options.reduction == Reduction::Sum) wanted.reduction(torch::kSum);
  if (options.reduction == Reduction::None) wanted.reduction(torch::kNone);
  const Tensor loss = F::cross_entropy(logits, targets.flatten(), wanted);
  return options.reduction == Reduction::None ? loss.view(targets.sizes()) : loss;
}

struct Case {
  at::ScalarType dtype;
  Options options;
  std::string text() const {
    return std::string(c10::toString(dtype)) + ", reduction " +
           std::to_string(static_cast<int>(options.reduction)) + ", smoothing " +
           std::to_string(options.label_smoothing) + ", rows " + std::to_string(options.rows_at_a_time);
  }
};

/// Loss and gradients of a tied weight, a bias and what is between them.
std::vector<Tensor> run(const Case& of, bool ours) {
  torch::manual_seed(3);
  const Tensor weight = (torch::randn({97, 24}) * 0.3).to(of.dtype).requires_grad_(),
               scale = torch::full({24}, 1.5, of.dtype).requires_grad_(),
               bias = torch::randn({97}).to(of.dtype).requires_grad_();
  const Tensor tokens = torch::randint(97, {2, 9}), targets = torch::randint(97, {2, 9});
  targets[0][4] = of.options.ignore_index;
  Options options = of.options;
  options.bias = bias;
  const Tensor hidden = torch::embedding(weight, tokens) * scale;
  const Tensor loss = ours ? linear_cross_entropy(hidden, weight, targets, options)
                           : reference(hidden, weight, targets, options);
  const Tensor weighing = torch::linspace(0.5, 2, loss.numel(), torch::kFloat).view(loss.sizes());
  const auto gradients = torch::autograd::grad({(loss * weighing).sum()}, {weight, scale, bias});
  std::vector<Tensor> results{loss.detach()};
  results.insert(results.end(), gradients.begin(), gradients.end());
  return results;
}

TEST(LinearCrossEntropy, EqualsLinearAndCrossEntropy) {
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble})
    for (const auto reduction : {Reduction::Mean, Reduction::Sum, Reduction::None})
      for (const double smoothing : {0.0, 0.2})
        for (const int64_t rows_at_a_time : {0, 5}) {
          const Case of{dtype,
                        {.ignore_index = 13,
                         .reduction = reduction,
                         .label_smoothing = smoothing,
                         .rows_at_a_time = rows_at_a_time}};
          const auto expected = run(of, false), got = run(of, true);
          const double tolerance = dtype == torch::kBFloat16 ? 3e-2 : dtype == torch::kFloat ? 1e-5 : 1e-11;
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_EQ(got[i].scalar_type(), expected[i].scalar_type()) << of.text();
            const Tensor a = got[i].to(torch::kDouble), b = expected[i].to(torch::kDouble);
            EXPECT_LE((a - b).abs().max().item<double>(), tolerance * b.abs().max().item<double>())
                << i << " of " << of.text();
          }
        }
}

// Central differences in fp64.
TEST(LinearCrossEntropy, GradientsAreThoseOfItsValues) {
  torch::manual_seed(4);
  const Tensor hidden = torch::randn({5, 3}, torch::kDouble).requires_grad_(),
               weight = torch::randn({7, 3}, torch::kDouble).requires_grad_(),
               bias = torch::randn({7}, torch::kDouble).requires_grad_();
  const Tensor targets = torch::tensor({1, 6, -100, 0, 3}, torch::kLong);
  const auto loss = [&] {
    return linear_cross_entropy(hidden, weight, targets,
                                {.bias = bias, .label_smoothing = 0.1, .rows_at_a_time = 2});
  };
  const auto gradients = torch::autograd::grad({loss()}, {hidden, weight, bias});
  const torch::NoGradGuard no_grad;
  size_t which = 0;
  for (const Tensor& input : {hidden, weight, bias}) {
    const Tensor flat = input.view({-1}), gradient = gradients[which++].reshape({-1});
    for (int64_t i = 0; i < flat.numel(); ++i) {
      constexpr double kStep = 1e-5;
      flat[i] += kStep;
      const double above = loss().item<double>();
      flat[i] -= 2 * kStep;
      const double below = loss().item<double>();
      flat[i] += kStep;
      EXPECT_NEAR(gradient[i].item<double>(), (above - below) / (2 * kStep), 1e-8);
    }
  }
}

TEST(LinearCrossEntropy, NeverHoldsAllLogits) {
  use_training_allocator();
  constexpr int64_t kRows = 2048, kVocabulary = 4096;
  const Tensor hidden = torch::randn({kRows, 16}).requires_grad_(),
               weight = torch::randn({kVocabulary, 16}).requires_grad_();
  const Tensor targets = torch::randint(kVocabulary, {kRows});
  const int64_t before = cpu_allocator_stats().used_bytes;
  const Tensor loss = linear_cross_entropy(hidden, weight, targets, {.rows_at_a_time = 128});
  loss.backward();
  const int64_t all_logits = kRows * kVocabulary * 4;
  EXPECT_GT(cpu_allocator_stats().peak_bytes - before, 0);
  EXPECT_LT(cpu_allocator_stats().peak_bytes - before, all_logits / 2);
}

TEST(LinearCrossEntropy, FrozenSidesEvaluationAndNoRows) {
  torch::manual_seed(3);
  const Tensor targets = torch::randint(40, {6});
  for (const auto reduction : {Reduction::Mean, Reduction::None})
    for (const bool of_hidden : {true, false}) {
      const Tensor hidden = torch::randn({6, 8}).requires_grad_(of_hidden),
                   weight = torch::randn({40, 8}).requires_grad_(!of_hidden);
      const Tensor loss = linear_cross_entropy(hidden, weight, targets, {.reduction = reduction});
      loss.sum().backward();
      EXPECT_EQ(hidden.grad().defined(), of_hidden);
      EXPECT_EQ(weight.grad().defined(), !of_hidden);
      const torch::NoGradGuard no_grad;
      const Tensor evaluated = linear_cross_entropy(hidden, weight, targets, {.reduction = reduction});
      EXPECT_FALSE(evaluated.requires_grad());
      EXPECT_TRUE(torch::equal(evaluated, loss));
    }
  const Tensor hidden = torch::randn({4, 6}).requires_grad_();
  const Tensor none =
      linear_cross_entropy(hidden, torch::randn({9, 6}), torch::full({4}, -100, torch::kLong));
  EXPECT_TRUE(std::isnan(none.item<float>()));
  none.backward();
  EXPECT_EQ(hidden.grad().count_nonzero().item<int64_t>(), 0);
}

TEST(LinearCrossEntropy, MisuseIsNamed) {
  const Tensor hidden = torch::randn({6, 8}).requires_grad_(), weight = torch::randn({40, 8});
  const Tensor targets = torch::randint(40, {6});
  EXPECT_ERROR(linear_cross_entropy(hidden, weight.t(), targets), Usage, "got Float [6, 8]");
  EXPECT_ERROR(linear_cross_entropy(hidden, weight.to(torch::kBFloat16), targets), Usage, "dtype, got Float");
  EXPECT_ERROR(linear_cross_entropy(hidden, weight, targets.narrow(0, 0, 5)), Usage, "got Long [5]");
  EXPECT_ERROR(linear_cross_entropy(hidden, weight, targets + 40), Usage, "outside the vocabulary of 40");
  EXPECT_ERROR(linear_cross_entropy(hidden, weight, targets, {.bias = torch::zeros({8})}), Usage, "a bias");
  EXPECT_ERROR(linear_cross_entropy(hidden, weight, targets, {.label_smoothing = 2}), Config, "0..1");
  const Tensor loss = linear_cross_entropy(hidden, weight, targets);
  EXPECT_ERROR(torch::autograd::grad({loss}, {hidden}, {}, true, /*create_graph=*/true), Unsupported,
               "first derivatives only");
  loss.backward();
  EXPECT_ERROR(loss.backward(), Usage, "taken before");
}

}  // namespace
}  // namespace zero
