// linear_cross_entropy() over a vocabulary of which each rank holds a part: one process's values and
// gradients, without all of a rank's logits.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "zero/cpu_allocator.h"
#include "zero/error.h"
#include "zero/linear_cross_entropy.h"
#include "zero/tensor_parallel.h"

namespace zero {
namespace {

using Reduction = LinearCrossEntropyOptions::Reduction;
using torch::Tensor;

constexpr int64_t kWords = 101, kFeatures = 8;

testing::RankOptions vocabulary_ranks() {
  testing::RankOptions options;
  options.mesh.axes = {{"dp", 1}, {"tp", -1}};
  return options;
}

struct WordHeadImpl : torch::nn::Module {
  explicit WordHeadImpl(int64_t words = kWords) {
    torch::manual_seed(5);
    head = register_module("head", torch::nn::Linear(kFeatures, words));
  }
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(WordHead);

const TensorParallelPlan kCutWords{{"head.*", "vocab"}};

double distance(const Tensor& a, const Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-12)).item<double>();
}

TEST(LinearCrossEntropyOfACutVocabulary, IsThatOfOneProcess) {
  for (const int ranks : {2, 3})
    testing::run_ranks(
        ranks,
        [](const Mesh& mesh) {
          Tensor targets = torch::arange(10) * 11;
          targets[2] = targets[7] = 5;
          targets = targets.view({2, 5});
          for (const double smoothing : {0.0, 0.1})
            for (const int64_t ignored : {-100, 5})
              for (const auto reduction : {Reduction::Mean, Reduction::Sum, Reduction::None})
                for (const int64_t rows_at_a_time : {0, 4, 1}) {
                  const auto run = [&](WordHead& net, const Tensor& x) {
                    const Tensor loss = linear_cross_entropy(x, net->head->weight, targets,
                                                             {.bias = net->head->bias,
                                                              .ignore_index = ignored,
                                                              .reduction = reduction,
                                                              .label_smoothing = smoothing,
                                                              .rows_at_a_time = rows_at_a_time});
                    return (loss * torch::linspace(0.5, 2, loss.numel()).view(loss.sizes())).sum();
                  };
                  const Tensor values = torch::linspace(-3, 3, 10 * kFeatures).view({2, 5, kFeatures});
                  const Tensor x = values.clone().requires_grad_(), y = values.clone().requires_grad_();
                  WordHead one, cut;
                  const auto parallel = parallelize(*cut, kCutWords, mesh);
                  const Tensor expected = run(one, x), loss = parallel.forward([&] { return run(cut, y); });
                  expected.backward();
                  loss.backward();
                  EXPECT_LT(distance(loss, expected), 1e-6);
                  EXPECT_LT(distance(y.grad(), x.grad()), 1e-5);
                  for (const char* name : {"head.weight", "head.bias"})
                    EXPECT_LT(distance(cut->named_parameters()[name].grad(),
                                       parallel.part_of(name, one->named_parameters()[name].grad())),
                              1e-5);
                  EXPECT_TRUE(parallel.report().gathered.empty());
                }
          WordHead cut;
          const auto parallel = parallelize(*cut, kCutWords, mesh);
          for (const int64_t rows_at_a_time : {0, 4})
            EXPECT_ERROR(parallel.forward([&] {
              return linear_cross_entropy(torch::ones({5, kFeatures}), cut->head->weight,
                                          torch::full({5}, kWords), {.rows_at_a_time = rows_at_a_time});
            }),
                         Usage, "outside the vocabulary of 101");
        },
        vocabulary_ranks());
}

TEST(LinearCrossEntropyOfACutVocabulary, NeverHoldsAllOfARanksLogits) {
  testing::run_ranks(
      2,
      [](const Mesh& mesh) {
        use_training_allocator();
        constexpr int64_t kRows = 2048, kMany = 4096;
        WordHead net(kMany);
        const auto parallel = parallelize(*net, kCutWords, mesh);
        const Tensor x = torch::randn({kRows, kFeatures}).requires_grad_();
        const Tensor targets = torch::randint(kMany, {kRows});
        const auto peak_of = [&](int64_t rows_at_a_time) {
          reset_cpu_allocator_peak();
          const int64_t before = cpu_allocator_stats().used_bytes;
          parallel
              .forward([&] {
                return linear_cross_entropy(x, net->head->weight, targets,
                                            {.rows_at_a_time = rows_at_a_time});
              })
              .backward();
          return cpu_allocator_stats().peak_bytes - before;
        };
        const int64_t logits_bytes = kRows * kMany / mesh.group("tp").size() * 4;
        EXPECT_LT(peak_of(128), logits_bytes / 2);
        EXPECT_GT(peak_of(kRows), logits_bytes);
      },
      vocabulary_ranks());
}

}  // namespace
}  // namespace zero
