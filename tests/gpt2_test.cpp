// GPT-2 as a module: its tree, its numbers against PyTorch's recorded ones, and what a sharding engine relies
// on.
#include "zero/gpt2.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "support/expect_error.h"
#include "support/golden_gpt2.h"

namespace zero {
namespace {

const Gpt2Shape kSmall{.vocab_size = 61, .context_length = 16, .layers = 2, .width = 24, .heads = 3};

torch::Tensor some_tokens(int64_t batch, int64_t sequence, int64_t seed = 1) {
  return golden::scrambled(seed, batch * sequence).remainder(kSmall.vocab_size).view({batch, sequence});
}

Gpt2 small_model(Gpt2Shape shape = kSmall) {
  torch::manual_seed(5);
  return Gpt2(shape);
}

TEST(Gpt2, HasNoBuffers) { EXPECT_TRUE(small_model()->buffers().empty()); }

TEST(Gpt2, FullSizeHasHuggingFacesNamesAndCount) {
  const auto published = golden::read_json("gpt2_parameters.json");
  const Gpt2 model(gpt2_shape("gpt2"));
  int64_t numel = 0;
  for (const auto& p : model->named_parameters()) {
    ASSERT_TRUE(published.contains(p.key())) << p.key();
    EXPECT_EQ(p.value().sizes().vec(), published.at(p.key()).get<std::vector<int64_t>>()) << p.key();
    numel += p.value().numel();
  }
  EXPECT_EQ(model->named_parameters().size(), published.size());
  EXPECT_EQ(numel, 124439808);
}

TEST(Gpt2, InitialisationIsGpt2sAndFollowsTheSeed) {
  const Gpt2Shape shape{.vocab_size = 500, .context_length = 100, .layers = 8, .width = 64, .heads = 4};
  torch::manual_seed(11);
  const Gpt2 model(shape), other(shape);
  torch::manual_seed(11);
  const Gpt2 again(shape);
  for (const auto& p : model->named_parameters()) {
    const std::string& name = p.key();
    EXPECT_TRUE(torch::equal(p.value(), again->named_parameters()[name])) << name;
    EXPECT_TRUE(p.value().requires_grad() && p.value().is_leaf()) << name;
    if (name.ends_with(".bias")) {
      EXPECT_TRUE(torch::equal(p.value(), torch::zeros_like(p.value()))) << name;
    } else if (name.find("ln_") != std::string::npos) {
      EXPECT_TRUE(torch::equal(p.value(), torch::ones_like(p.value()))) << name;
    } else {
      const double expected = name.find("c_proj") != std::string::npos ? 0.02 / 4 : 0.02;  // 4 = sqrt(2 * 8)
      EXPECT_NEAR(p.value().std().item<double>(), expected, 0.05 * expected) << name;
      EXPECT_FALSE(torch::equal(p.value(), other->named_parameters()[name])) << name;
    }
  }
}

// --- golden losses
// ----------------------------------------------------------------------------------------------------

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const golden::Run& run,
                                                      std::vector<torch::Tensor> parameters) {
  const auto betas = std::make_tuple(run.beta1, run.beta2);
  if (run.optimizer == "adamw")
    return std::make_unique<torch::optim::AdamW>(
        parameters,
        torch::optim::AdamWOptions(run.lr).betas(betas).eps(run.eps).weight_decay(run.weight_decay));
  if (run.optimizer == "adam")
    return std::make_unique<torch::optim::Adam>(
        parameters,
        torch::optim::AdamOptions(run.lr).betas(betas).eps(run.eps).weight_decay(run.weight_decay));
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(run.lr).momentum(run.momentum).weight_decay(run.weight_decay));
}

TEST(Gpt2Golden, TenStepsMeetPyTorchsLosses) {
  const auto recording = golden::recording();
  ASSERT_EQ(recording.runs.size(), 5u);
  for (const golden::Run& run : recording.runs) {
    auto model = golden::make_model(recording.shape);
    auto optimizer = optimizer_of(run, model->parameters());
    ASSERT_EQ(run.losses.size(), 10u);
    for (size_t step = 0; step < run.losses.size(); step++) {
      SCOPED_TRACE(run.optimizer + ", batch " + std::to_string(run.global_batch) + ", step " +
                   std::to_string(step));
      const auto batch = golden::batch(static_cast<int64_t>(step), run.global_batch, recording.shape);
      auto loss = model->loss(batch.tokens, batch.targets);
      optimizer->zero_grad();
      loss.backward();
      const double norm = torch::nn::utils::clip_grad_norm_(model->parameters(), run.clip);
      optimizer->step();
      // Ten times fp32's distance from fp64 here, and below what GELU by erf or another epsilon would change.
      EXPECT_NEAR(loss.item<double>(), run.losses[step], 1e-6 * run.losses[step]);
      EXPECT_NEAR(norm, run.gradient_norms[step], 1e-5 * run.gradient_norms[step]);
    }
  }
}

TEST(Gpt2Golden, BatchesAreRowsOfOneStream) {
  const auto shape = golden::recording().shape;
  const auto large = golden::batch(3, 36, shape), small = golden::batch(3, 12, shape);
  EXPECT_TRUE(torch::equal(large.tokens.slice(0, 0, 12), small.tokens));
  EXPECT_TRUE(torch::equal(small.tokens.slice(1, 1), small.targets.slice(1, 0, -1)));
  EXPECT_FALSE(torch::equal(golden::batch(4, 12, shape).tokens, small.tokens));
}

// --- forward
// ----------------------------------------------------------------------------------------------------------

TEST(Gpt2, LaterTokensDoNotChangeEarlierLogits) {
  auto model = golden::make_model(kSmall);
  const auto tokens = some_tokens(2, 16);
  const auto before = model->forward(tokens);
  auto changed = tokens.clone();
  changed.select(1, 10).add_(1).remainder_(kSmall.vocab_size);
  const auto after = model->forward(changed);
  EXPECT_TRUE(torch::allclose(before.slice(1, 0, 10), after.slice(1, 0, 10), 1e-6, 1e-6));
  // Every later position sees the change, in every row.
  const auto difference = (before - after).slice(1, 10).abs().amax({2});
  EXPECT_GT(difference.min().item<double>(), 1e-4);
}

TEST(Gpt2, RowsOfABatchAreIndependent) {
  auto model = golden::make_model(kSmall);
  const auto tokens = some_tokens(3, 9);
  const auto logits = model->forward(tokens);
  EXPECT_EQ(logits.sizes().vec(), (std::vector<int64_t>{3, 9, kSmall.vocab_size}));
  for (int64_t row = 0; row < 3; row++)
    EXPECT_TRUE(torch::allclose(model->forward(tokens.slice(0, row, row + 1))[0], logits[row], 1e-5, 1e-5));
}

TEST(Gpt2, NoGradAndEvalGiveTheSameLogitsWithoutAGraph) {
  auto model = golden::make_model(kSmall);
  const auto tokens = some_tokens(2, 8);
  const auto expected = model->forward(tokens);
  EXPECT_TRUE(expected.requires_grad());
  model->eval();
  torch::NoGradGuard no_grad;
  const auto logits = model->forward(tokens);
  EXPECT_FALSE(logits.requires_grad());
  EXPECT_TRUE(torch::allclose(logits, expected, 1e-6, 1e-6));
}

TEST(Gpt2, DropoutActsInTrainingOnly) {
  auto shape = kSmall;
  shape.dropout = 0.3;
  auto model = golden::make_model(shape);
  auto plain = golden::make_model(kSmall);
  const auto tokens = some_tokens(2, 8);
  torch::manual_seed(1);
  const auto first = model->forward(tokens), second = model->forward(tokens);
  torch::manual_seed(1);
  EXPECT_TRUE(torch::equal(model->forward(tokens), first));
  EXPECT_FALSE(torch::allclose(first, second));
  model->eval();
  EXPECT_TRUE(torch::allclose(model->forward(tokens), plain->forward(tokens), 1e-5, 1e-5));
}

TEST(Gpt2, Bfloat16LossIsNearFp32s) {
  const auto recording = golden::recording();
  const auto batch = golden::batch(0, 12, recording.shape);
  auto model = golden::make_model(recording.shape);
  const double expected = model->loss(batch.tokens, batch.targets).item<double>();
  model->to(torch::kBFloat16);
  EXPECT_EQ(model->forward(batch.tokens).scalar_type(), torch::kBFloat16);
  auto loss = model->loss(batch.tokens, batch.targets);
  EXPECT_EQ(loss.scalar_type(), torch::kFloat);
  EXPECT_NEAR(loss.item<double>(), expected, 0.01 * expected);
  loss.backward();
  for (const auto& p : model->named_parameters()) {
    EXPECT_EQ(p.value().grad().scalar_type(), torch::kBFloat16) << p.key();
    EXPECT_TRUE(p.value().grad().isfinite().all().item<bool>()) << p.key();
  }
}

TEST(Gpt2, LossLeavesOutIgnoredTargets) {
  auto model = golden::make_model(kSmall);
  const auto tokens = some_tokens(2, 8), targets = some_tokens(2, 8, 2);
  auto masked = targets.clone();
  masked.slice(1, 5).fill_(-100);
  const auto kept = model->loss(tokens, masked);
  // Causality: the first five positions alone have the same mean.
  EXPECT_NEAR(kept.item<double>(), model->loss(tokens.slice(1, 0, 5), targets.slice(1, 0, 5)).item<double>(),
              1e-5);
}

// --- gradients
// --------------------------------------------------------------------------------------------------------

TEST(Gpt2, GradientsMatchFiniteDifferences) {
  auto model = golden::make_model(kSmall);
  model->to(torch::kDouble);
  const auto tokens = some_tokens(2, 7), targets = some_tokens(2, 7, 2);
  model->loss(tokens, targets).backward();
  torch::NoGradGuard no_grad;
  const double step = 1e-5;
  for (auto& p : model->named_parameters()) {
    // Along the gradient itself the slope is the gradient's norm: one number that every element has a part
    // in.
    const auto gradient = p.value().grad();
    const double norm = gradient.norm().item<double>();
    if (norm < 1e-9) continue;
    const auto direction = gradient / norm;
    p.value().add_(direction, step);
    const double above = model->loss(tokens, targets).item<double>();
    p.value().add_(direction, -2 * step);
    const double below = model->loss(tokens, targets).item<double>();
    p.value().add_(direction, step);
    EXPECT_NEAR((above - below) / (2 * step), norm, 1e-6 * norm + 1e-9) << p.key();
  }
}

TEST(Gpt2, TiedEmbeddingsGradientIsTheSumOfBothUses) {
  auto model = golden::make_model(kSmall);
  model->to(torch::kDouble);
  const auto tokens = some_tokens(2, 7), targets = some_tokens(2, 7, 2);
  model->loss(tokens, targets).backward();
  auto wte = model->named_parameters()["wte.weight"];
  const auto total = wte.grad().clone();

  // The head's part alone, from the hidden states: softmax minus one-hot, times the hidden state, over the
  // positions.
  torch::Tensor head_part;
  {
    torch::NoGradGuard no_grad;
    auto delta = model->forward(tokens).view({-1, kSmall.vocab_size}).softmax(1);
    delta -= torch::one_hot(targets.reshape({-1}), kSmall.vocab_size);
    // logits = hidden wte^T, and wte has full column rank: recover the hidden states by least squares.
    const auto logits = model->forward(tokens).view({-1, kSmall.vocab_size});
    const auto hidden = logits.matmul(wte).matmul(torch::linalg_inv(wte.t().matmul(wte)));
    head_part = delta.t().matmul(hidden) / targets.numel();
  }
  // What is left is the lookup's: rows of tokens that occur, and nothing in any other.
  const auto lookup_part = total - head_part;
  auto used = torch::zeros({kSmall.vocab_size}, torch::kBool);
  used.index_fill_(0, tokens.reshape({-1}), true);
  ASSERT_FALSE(used.all().item<bool>());
  const auto row_norms = lookup_part.norm(2, 1);
  EXPECT_LT(row_norms.masked_select(~used).max().item<double>(), 1e-12);
  EXPECT_GT(row_norms.masked_select(used).min().item<double>(), 1e-6);
  EXPECT_GT(head_part.norm().item<double>(), 1e-3);
}

// --- bad input
// --------------------------------------------------------------------------------------------------------

TEST(Gpt2, RefusesBadTokens) {
  auto model = small_model();
  EXPECT_ERROR(model->forward(some_tokens(1, 17)), Config,
               "a sequence of 17 tokens is longer than the context of 16");
  EXPECT_ERROR(model->forward(torch::full({1, 4}, 61)), Usage, "token 61 is outside the vocabulary of 61");
  EXPECT_ERROR(model->forward(torch::full({1, 4}, -1)), Usage, "token -1 is outside the vocabulary of 61");
  EXPECT_ERROR(model->forward(some_tokens(1, 8).view({8})), Usage,
               "expected shape [batch, sequence], got [8]");
  EXPECT_ERROR(model->forward(some_tokens(1, 8).to(torch::kInt)), Usage, "expected int64, got Int");
  EXPECT_ERROR(model->forward(torch::empty({2, 0}, torch::kLong)), Usage, "at least one token, got [2, 0]");
  EXPECT_ERROR(model->forward(torch::Tensor()), Usage, "no tensor");
  EXPECT_ERROR(model->loss(some_tokens(2, 8), some_tokens(2, 7)), Usage, "expected the shape of the tokens");
  EXPECT_ERROR(Gpt2(Gpt2Shape{.heads = 5}), Config, "not a multiple of 5 heads");
}

}  // namespace
}  // namespace zero
