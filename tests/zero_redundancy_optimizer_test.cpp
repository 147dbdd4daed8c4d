// The drop-in: a plain loop in which only step() is ours equals one process, with any optimizer.
#include "zero/zero_redundancy_optimizer.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "support/ranks.h"
#include "support/small_net.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

zero::OptimizerSpec torch_adagrad() {
  return zero::TorchOptimizer{
      [](std::vector<torch::optim::OptimizerParamGroup> groups) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<torch::optim::Adagrad>(std::move(groups), torch::optim::AdagradOptions(1e-2));
      }};
}

// With a small eps, AdamW's first step is the gradient's sign: of an element near zero, that of its rounding.
constexpr double kEps = 1e-4;

std::unique_ptr<torch::optim::Optimizer> plain_optimizer(int which, std::vector<Tensor> parameters) {
  if (which == 0)
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.01).eps(kEps));
  if (which == 1)
    return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  return std::make_unique<torch::optim::Adagrad>(parameters, torch::optim::AdagradOptions(1e-2));
}

TEST(ZeroRedundancyOptimizer, EqualsThePlainOptimizerOnTheWholeBatch) {
  for (int ranks : {1, 2, 3}) {
    run_ranks(ranks, [ranks](const zero::Mesh& mesh) {
      const std::vector<zero::OptimizerSpec> specs{zero::AdamW{.lr = 1e-2, .eps = kEps},
                                                   zero::SGD{.lr = 0.1, .momentum = 0.9}, torch_adagrad()};
      for (size_t which = 0; which < specs.size(); ++which) {
        torch::manual_seed(6);
        SmallNet plain, model;
        plain->to(test_device());
        model->to(test_device());
        {
          torch::NoGradGuard no_grad;
          auto from = plain->parameters(), to = model->parameters();
          for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
        }
        auto reference = plain_optimizer(static_cast<int>(which), plain->parameters());
        zero::ZeroRedundancyOptimizer optimizer(model->parameters(), specs[which], {.gradient_clipping = 0.5},
                                                mesh);
        for (int step = 0; step < 6; ++step) {
          Batch batch = batch_of(step, 2 * ranks);
          reference->zero_grad();
          for (int part = 0; part < ranks; ++part) {
            Batch rows = batch.rows(2 * part, 2);
            (plain->loss(rows.tokens, rows.targets) / ranks).backward();
          }
          const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
          reference->step();

          optimizer.zero_grad();
          Batch rows = batch.rows(2 * mesh.rank(), 2);
          model->loss(rows.tokens, rows.targets).backward();
          const zero::StepResult result = optimizer.step();
          EXPECT_TRUE(result.stepped);
          EXPECT_NEAR(result.clip().norm_before, norm, 1e-4 * norm);
          auto a = plain->parameters(), b = model->parameters();
          for (size_t i = 0; i < a.size(); ++i)
            EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-4, 1e-6)) << which << " " << step << " " << i;
        }
      }
    });
  }
}

TEST(ZeroRedundancyOptimizer, StateIsShardedAndValuesMayBeWritten) {
  run_ranks(4, [](const zero::Mesh& mesh) {
    torch::nn::Linear model(64, 64);
    model->bias.set_requires_grad(false);
    model->to(torch::kBFloat16);
    model->to(test_device());
    zero::ZeroRedundancyOptimizer optimizer(model->parameters(), zero::AdamW{.lr = 1e-2}, {}, mesh);
    EXPECT_EQ(optimizer.state_bytes(), (64 * 64 / 4) * 12) << "moments and master of a quarter";
    {
      torch::NoGradGuard no_grad;
      model->weight.fill_(0.5);  // a user who loads weights after construction
    }
    optimizer.zero_grad();
    model->forward(torch::ones({1, 64}, torch::kBFloat16).to(test_device())).sum().backward();
    optimizer.step();
    EXPECT_NEAR(model->weight.mean().item<double>(), 0.49, 1e-3);
  });
}

TEST(ZeroRedundancyOptimizer, RanksStartFromRankZerosValues) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    torch::manual_seed(mesh.rank());
    torch::nn::Linear model(4, 4);
    torch::manual_seed(0);
    torch::nn::Linear expected(4, 4);
    model->to(test_device());
    zero::ZeroRedundancyOptimizer optimizer(model->parameters(), zero::AdamW{}, {}, mesh);
    EXPECT_TRUE(torch::equal(model->weight.cpu(), expected->weight));
  });
}
}  // namespace
