// Ten steps of the sharded engine against one process, for every stage, world, accumulation and dtype; and
// what must be the same bits: stages among themselves, overlap on and off, every budget.
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <tuple>

#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
constexpr int kSteps = 10;
constexpr int64_t kMicro = 2;  // samples of a micro-batch

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<Tensor> parameters;  // fp32, in the module's order
};

const zero::AdamW kAdamW{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
constexpr double kClip = 0.7;

// One process with nothing of ours in it: torch's optimizer on fp32 masters, gradients of all micro-batches
// summed in fp32.
Outcome plain_run(at::ScalarType dtype, int micro_batches) {
  torch::manual_seed(7);
  SmallNet model;
  model->to(test_device());
  std::vector<Tensor> masters;
  for (auto& p : model->parameters()) masters.push_back(p.detach().clone().set_requires_grad(true));
  model->to(dtype);
  torch::optim::AdamW optimizer(masters, torch::optim::AdamWOptions(kAdamW.lr)
                                             .betas({kAdamW.beta1, kAdamW.beta2})
                                             .eps(kAdamW.eps)
                                             .weight_decay(kAdamW.weight_decay));
  Outcome run;
  for (int step = 0; step < kSteps; ++step) {
    Batch batch = batch_of(step, kMicro * micro_batches);
    double loss = 0;
    std::vector<Tensor> sums;
    for (auto& m : masters) sums.push_back(torch::zeros_like(m));
    for (int i = 0; i < micro_batches; ++i) {
      Batch rows = batch.rows(i * kMicro, kMicro);
      Tensor l = model->loss(rows.tokens, rows.targets);
      loss += l.item<double>() / micro_batches;
      model->zero_grad();
      l.backward();
      size_t k = 0;
      for (auto& p : model->parameters()) sums[k++].add_(p.grad().to(torch::kFloat));
    }
    double squares = 0;
    for (size_t k = 0; k < masters.size(); ++k) {
      masters[k].mutable_grad() = sums[k].div_(micro_batches);
      squares += masters[k].grad().square().sum().item<double>();
    }
    run.losses.push_back(loss);
    run.norms.push_back(std::sqrt(squares));
    torch::nn::utils::clip_grad_norm_(masters, kClip);
    optimizer.step();
    torch::NoGradGuard no_grad;
    size_t k = 0;
    for (auto& p : model->parameters()) p.copy_(masters[k++]);
  }
  for (auto& m : masters) run.parameters.push_back(m.detach().cpu());
  return run;
}

Outcome engine_run(const zero::Mesh& mesh, zero::EngineOptions options, bool lazy = true) {
  torch::manual_seed(7);
  SmallNet model = lazy ? zero::lazily([] { return SmallNet(); }) : SmallNet();
  options.gradient_clipping = kClip;
  zero::Engine engine(*model, kAdamW, options, mesh);
  const int micro_batches = mesh.size() * options.accumulation_steps;
  Outcome run;
  for (int step = 0; step < kSteps; ++step) {
    Batch batch = batch_of(step, kMicro * micro_batches);
    double loss = 0;
    for (int i = 0; i < options.accumulation_steps; ++i) {
      Batch rows = batch.rows((i * mesh.size() + mesh.rank()) * kMicro, kMicro);
      Tensor l = engine.forward([&] { return model->loss(rows.tokens, rows.targets); });
      loss += l.item<double>() / micro_batches;
      engine.backward(l);
    }
    Tensor total = torch::tensor({loss}, torch::kDouble).to(mesh.device());
    mesh.world().all_reduce(total, zero::Group::Reduce::Sum, "loss").wait();
    run.losses.push_back(total.item<double>());
    zero::StepResult result = engine.step();
    EXPECT_TRUE(result.stepped);
    run.norms.push_back(result.clip().norm_before);
  }
  for (const auto& item : model->named_parameters())
    run.parameters.push_back(engine.full_parameter(item.key()));
  return run;
}

void expect_same_bits(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  for (size_t i = 0; i < a.parameters.size(); ++i)
    EXPECT_TRUE(torch::equal(a.parameters[i], b.parameters[i])) << what << ", parameter " << i;
}

void expect_near(const Outcome& a, const Outcome& b, double relative, const std::string& what) {
  for (int step = 0; step < kSteps; ++step) {
    EXPECT_NEAR(a.losses[step], b.losses[step], relative * std::abs(b.losses[step]))
        << what << ", step " << step;
    EXPECT_NEAR(a.norms[step], b.norms[step], 20 * relative * std::abs(b.norms[step]))
        << what << ", step " << step;
  }
  for (size_t i = 0; i < a.parameters.size(); ++i)
    EXPECT_TRUE(torch::allclose(a.parameters[i], b.parameters[i], 100 * relative, 10 * relative))
        << what << ", parameter " << i;
}

class Parity : public ::testing::TestWithParam<std::tuple<int, int, at::ScalarType>> {};

TEST_P(Parity, EveryStageEqualsOneProcess) {
  const auto [ranks, accumulation, dtype] = GetParam();
  // Losses in bf16 turn a last-bit difference of a sum into a different rounding of a weight.
  const double tolerance = dtype == torch::kFloat ? 1e-5 : 2e-3;
  run_ranks(ranks, [=](const zero::Mesh& mesh) {
    // Whole values are the same on every rank, so one of them compares.
    const Outcome reference = mesh.rank() == 0 ? plain_run(dtype, ranks * accumulation) : Outcome{};
    std::vector<Outcome> stages;
    for (int stage = 0; stage <= 3; ++stage) {
      zero::EngineOptions options{.stage = stage, .dtype = dtype, .accumulation_steps = accumulation};
      options.reduce_bucket_numel = 500;
      options.group_numel = 200;
      stages.push_back(engine_run(mesh, options));
      if (mesh.rank() == 0)
        expect_near(stages.back(), reference, tolerance, "stage " + std::to_string(stage));

      const Outcome plain = engine_run(
          mesh,
          [&] {
            auto o = options;
            o.overlap = false;
            o.share_parameters = false;
            o.row_gradients = false;
            return o;
          }(),
          /*lazy=*/false);
      expect_same_bits(
          stages.back(), plain,
          "overlap, common memory and row gradients off, eager construction, stage " + std::to_string(stage));
    }
    expect_same_bits(stages[3], stages[2], "stage 3 and 2");
    zero::EngineOptions whole{.stage = 2, .dtype = dtype, .accumulation_steps = accumulation};
    whole.split_master = false;
    expect_near(engine_run(mesh, whole), stages[2], tolerance / 10, "whole masters");
    if (accumulation == 1) expect_same_bits(stages[1], stages[2], "stage 1 and 2");
    if (accumulation == 1) expect_same_bits(stages[0], stages[2], "stage 0 and 2");

    for (int64_t budget : {int64_t{0}, int64_t{3000}, int64_t{6000}, std::numeric_limits<int64_t>::max()}) {
      zero::EngineOptions options{.stage = 3, .dtype = dtype, .accumulation_steps = accumulation};
      options.reduce_bucket_numel = 100000;
      options.group_numel = 200;
      options.budget_bytes = budget;
      options.share_parameters = false;
      expect_same_bits(engine_run(mesh, options), stages[3], "budget " + std::to_string(budget));
    }
  });
}

// Every pair of two of the three: none of them acts through the other two alone.
using Case = std::tuple<int, int, at::ScalarType>;
INSTANTIATE_TEST_SUITE_P(Pairs, Parity,
                         ::testing::Values(Case{1, 1, torch::kFloat}, Case{1, 3, torch::kBFloat16},
                                           Case{2, 1, torch::kBFloat16}, Case{2, 3, torch::kFloat},
                                           Case{3, 1, torch::kFloat}, Case{3, 3, torch::kBFloat16},
                                           Case{4, 1, torch::kBFloat16}, Case{4, 3, torch::kFloat}),
                         [](const auto& info) {
                           return "Ranks" + std::to_string(std::get<0>(info.param)) + "Accumulation" +
                                  std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) == torch::kFloat ? "Fp32" : "Bf16");
                         });

TEST(Hybrid, ShardingInsideGroupsEqualsOneProcess) {
  run_ranks(4, [](const zero::Mesh& mesh) {
    for (int accumulation : {1, 3}) {
      const Outcome reference = plain_run(torch::kFloat, 4 * accumulation);
      for (int stage : {1, 2, 3}) {
        zero::EngineOptions options{.stage = stage, .accumulation_steps = accumulation};
        options.shard_group_ranks = 2;
        options.reduce_bucket_numel = 300;
        expect_near(engine_run(mesh, options), reference, 1e-5, "hybrid stage " + std::to_string(stage));
      }
    }
  });
}

TEST(Wire, LowerPrecisionOnTheWireStaysNear) {
  run_ranks(3, [](const zero::Mesh& mesh) {
    const Outcome reference = plain_run(torch::kFloat, 3);
    for (int stage : {0, 2, 3}) {
      zero::EngineOptions options{.stage = stage, .communication_dtype = torch::kBFloat16};
      options.gradient_predivide_factor = 3;
      const Outcome run = engine_run(mesh, options);
      expect_near(run, reference, 5e-3, "bf16 wire, stage " + std::to_string(stage));
      EXPECT_NE(run.norms, reference.norms) << "the wire dtype has no effect";
    }
  });
}
}  // namespace
