// Modules that do not know of ranks, cut over them: losses and gradients are those of one process.
#include "zero/tensor_parallel.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <functional>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "zero/error.h"
#include "zero/gpt2.h"
#include "zero/gpt_neox.h"
#include "zero/language_model_plan.h"
#include "zero/llama.h"

namespace {

using namespace zero::testing;
using zero::Mesh;

RankOptions tensor_ranks() {
  RankOptions options;
  options.mesh.axes = {{"dp", 1}, {"tp", -1}};
  return options;
}

// |a - b| beside the largest of b.
double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-12)).item<double>();
}

struct LanguageCase {
  std::string name;
  zero::ModelShape shape;
  int ranks = 2;
  bool sequence = false;
};

constexpr int64_t kVocabulary = 101, kBatch = 2, kLength = 13;

zero::Gpt2Shape gpt2(double dropout = 0) {
  return {.vocab_size = kVocabulary,
          .context_length = 16,
          .layers = 2,
          .width = 32,
          .heads = 4,
          .dropout = dropout};
}
zero::LlamaShape llama(int64_t kv_heads, int64_t mlp_width = 50) {
  return {.vocab_size = kVocabulary,
          .context_length = 16,
          .layers = 2,
          .width = 24,
          .heads = 4,
          .kv_heads = kv_heads,
          .head_width = 6,
          .mlp_width = mlp_width};
}
zero::GptNeoxShape neox() {
  return {
      .vocab_size = kVocabulary, .context_length = 16, .layers = 2, .width = 32, .heads = 4, .mlp_width = 54};
}

struct Tokens {
  at::Tensor tokens, targets;
  explicit Tokens(uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    tokens = at::randint(0, kVocabulary, {kBatch, kLength}, generator, at::kLong);
    targets = at::randint(0, kVocabulary, {kBatch, kLength}, generator, at::kLong);
    targets[0][3] = -100;
  }
};

std::shared_ptr<zero::LanguageModel> model_of(const zero::ModelShape& shape) {
  torch::manual_seed(7);
  return zero::make_language_model(shape);
}

void step_down(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.sub_(parameter.grad(), 0.1);
    parameter.mutable_grad() = at::Tensor();
  }
}

void expect_as_one_process(const LanguageCase& which, const Mesh& mesh) {
  const auto one = model_of(which.shape), model = model_of(which.shape);
  const auto plan = zero::tensor_parallel_plan(*model, which.shape, which.ranks);
  const auto parallel = zero::parallelize(*model, plan, mesh, {.sequence = which.sequence});
  for (uint64_t step = 0; step < 3; ++step) {
    const Tokens batch(step);
    torch::manual_seed(step);
    const at::Tensor expected = one->loss(batch.tokens, batch.targets);
    expected.backward();
    torch::manual_seed(step);
    const at::Tensor loss = parallel.forward([&] { return model->loss(batch.tokens, batch.targets); });
    loss.backward();
    EXPECT_LT(distance(loss, expected), 1e-6) << which.name << " step " << step;
    const auto parameters = model->named_parameters();
    for (const auto& item : one->named_parameters()) {
      const at::Tensor gradient = parameters[item.key()].grad();
      ASSERT_TRUE(gradient.defined()) << which.name << " " << item.key();
      EXPECT_LT(distance(gradient, parallel.part_of(item.key(), item.value().grad())), 1e-5)
          << which.name << " step " << step << " " << item.key();
    }
    step_down(*one);
    step_down(*model);
  }
  EXPECT_TRUE(parallel.report().gathered.empty())
      << which.name << " " << parallel.report().gathered.begin()->first << ": "
      << parallel.report().gathered.begin()->second;
}

TEST(TensorParallel, OurModelsAreThoseOfOneProcess) {
  for (const int ranks : {2, 4}) {
    std::vector<LanguageCase> cases;
    for (const bool sequence : {false, true}) {
      const std::string name = sequence ? ", sequence" : "";
      cases.push_back({"gpt2" + name, gpt2(), ranks, sequence});
      cases.push_back({"gpt2 dropout" + name, gpt2(0.2), ranks, sequence});
      cases.push_back({"llama" + name, llama(4), ranks, sequence});
      cases.push_back({"llama grouped" + name, llama(2), ranks, sequence});
      cases.push_back({"llama one kv" + name, llama(1, 51), ranks, sequence});
      cases.push_back({"neox" + name, neox(), ranks, sequence});
    }
    run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          for (const LanguageCase& which : cases) expect_as_one_process(which, mesh);
        },
        tensor_ranks());
  }
}

}  // namespace
