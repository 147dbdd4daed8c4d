// The drop-in's options, each beside the plain optimizer or the default.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/zero_redundancy_optimizer.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
using zero::ZeroRedundancyOptimizer;
using zero::ZeroRedundancyOptions;
constexpr double kWrapperEps = 1e-4;
const zero::AdamW kWrapped{.lr = 1e-2, .eps = kWrapperEps};

SmallNet net_of(at::ScalarType dtype = torch::kFloat) {
  torch::manual_seed(6);
  SmallNet model;
  model->to(dtype);
  return model;
}

std::vector<Tensor> copies(SmallNet& model) {
  std::vector<Tensor> all;
  for (const Tensor& parameter : model->parameters()) all.push_back(parameter.detach().clone());
  return all;
}

void expect_same_tensors(const std::vector<Tensor>& a, const std::vector<Tensor>& b,
                         const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << what << ", " << i;
}

void backward_of(SmallNet& model, const zero::Mesh& mesh, int number, double weight = 1) {
  const Batch rows = batch_of(number, 2 * mesh.size()).rows(2 * mesh.rank(), 2);
  (model->loss(rows.tokens, rows.targets) * weight).backward();
}

TEST(ZeroRedundancyOptions, GroupsByNameEqualTorchsGroups) {
  for (const int ranks : {1, 3})
    run_ranks(ranks, [ranks](const zero::Mesh& mesh) {
      SmallNet plain = net_of(), model = net_of();
      std::vector<Tensor> decayed, others;
      for (const auto& one : plain->named_parameters())
        (one.key().ends_with("bias") || one.key().find("norm") != std::string::npos ? others : decayed)
            .push_back(one.value());
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(decayed, std::make_unique<torch::optim::AdamWOptions>(
                                       torch::optim::AdamWOptions(1e-2).weight_decay(0.3).eps(kWrapperEps)));
      groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(
                                      torch::optim::AdamWOptions(2e-2).weight_decay(0).eps(kWrapperEps)));
      torch::optim::AdamW reference(groups, torch::optim::AdamWOptions(1e-2));
      ZeroRedundancyOptions options;
      options.groups = {{.pattern = "*bias", .lr_scale = 2, .weight_decay = 0},
                        {.pattern = "*norm*", .lr_scale = 2, .weight_decay = 0}};
      ZeroRedundancyOptimizer optimizer(model->named_parameters().pairs(),
                                        zero::AdamW{.lr = 1e-2, .eps = kWrapperEps, .weight_decay = 0.3},
                                        options, mesh);
      for (int step = 0; step < 5; ++step) {
        const Batch batch = batch_of(step, 2 * ranks);
        reference.zero_grad();
        for (int part = 0; part < ranks; ++part) {
          const Batch rows = batch.rows(2 * part, 2);
          (plain->loss(rows.tokens, rows.targets) / ranks).backward();
        }
        reference.step();
        optimizer.zero_grad();
        backward_of(model, mesh, step);
        optimizer.step();
      }
      const auto a = copies(plain), b = copies(model);
      for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-4, 1e-6)) << i;
    });
}

TEST(ZeroRedundancyOptions, SumsInFp32LoseNothingOfSeveralBackwards) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    constexpr int kMicro = 5;
    SmallNet model = net_of(torch::kBFloat16), by_hand = net_of(torch::kBFloat16),
             rounded = net_of(torch::kBFloat16);
    ZeroRedundancyOptions options;
    options.accumulate_in_fp32 = true;
    ZeroRedundancyOptimizer optimizer(model->parameters(), kWrapped, options, mesh);
    ZeroRedundancyOptimizer plain(rounded->parameters(), kWrapped, {}, mesh);
    // The same sums by hand, in an fp32 copy of the model that is stepped and rounded.
    std::vector<Tensor> masters;
    for (const Tensor& parameter : by_hand->parameters())
      masters.push_back(parameter.detach().to(torch::kFloat).set_requires_grad(true));
    ZeroRedundancyOptimizer of_masters(masters, kWrapped, {}, mesh);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      plain.zero_grad();
      std::vector<Tensor> sums;
      for (const Tensor& master : masters) sums.push_back(torch::zeros_like(master));
      for (int micro = 0; micro < kMicro; ++micro) {
        const int number = kMicro * step + micro;
        backward_of(model, mesh, number, 1.0 / kMicro);
        for (const Tensor& parameter : model->parameters()) EXPECT_FALSE(parameter.grad().defined());
        backward_of(rounded, mesh, number, 1.0 / kMicro);
        by_hand->zero_grad();
        backward_of(by_hand, mesh, number, 1.0 / kMicro);
        size_t i = 0;
        for (const Tensor& parameter : by_hand->parameters())
          sums[i++].add_(parameter.grad().to(torch::kFloat));
      }
      for (size_t i = 0; i < masters.size(); ++i) masters[i].mutable_grad() = sums[i];
      optimizer.step();
      plain.step();
      of_masters.step();
      torch::NoGradGuard no_grad;
      size_t i = 0;
      for (const Tensor& parameter : by_hand->parameters()) parameter.copy_(masters[i++]);
    }
    expect_same_tensors(copies(model), copies(by_hand), "fp32 sums");
    bool differs = false;
    const auto a = copies(model), b = copies(rounded);
    for (size_t i = 0; i < a.size(); ++i) differs = differs || !torch::equal(a[i], b[i]);
    EXPECT_TRUE(differs) << "sums in bf16 lose something";
  });
}

TEST(ZeroRedundancyOptions, ALazyOneMakesItsStatesWithTheFirstStep) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    SmallNet model = net_of(), eager = net_of(torch::kBFloat16);
    ZeroRedundancyOptions options;
    options.lazy_init = true;
    ZeroRedundancyOptimizer lazy(model->parameters(), kWrapped, options, mesh);
    ZeroRedundancyOptimizer other(eager->parameters(), kWrapped, {}, mesh);
    EXPECT_EQ(lazy.state_bytes(), 0);
    EXPECT_ERROR(lazy.plan(), Usage, "the optimizer is lazy and not made yet");
    model->to(torch::kBFloat16);  // after construction, as a lazy one allows
    for (int step = 0; step < 3; ++step) {
      lazy.zero_grad();
      other.zero_grad();
      backward_of(model, mesh, step);
      backward_of(eager, mesh, step);
      lazy.step();
      other.step();
    }
    EXPECT_EQ(lazy.state_bytes(), other.state_bytes());
    expect_same_tensors(copies(model), copies(eager), "lazy");
  });
}

TEST(ZeroRedundancyOptions, ShardGroupsGiveTheSameValues) {
  run_ranks(4, [](const zero::Mesh& mesh) {
    SmallNet model = net_of(), hybrid = net_of();
    ZeroRedundancyOptions options;
    options.shard_group_ranks = 2;
    ZeroRedundancyOptimizer whole(model->parameters(), kWrapped, {}, mesh);
    ZeroRedundancyOptimizer groups(hybrid->parameters(), kWrapped, options, mesh);
    for (int step = 0; step < 3; ++step) {
      whole.zero_grad();
      groups.zero_grad();
      backward_of(model, mesh, step);
      backward_of(hybrid, mesh, step);
      whole.step();
      groups.step();
    }
    EXPECT_EQ(groups.plan().shard_ranks, 2);
    EXPECT_GT(groups.state_bytes(), whole.state_bytes());
    const auto a = copies(model), b = copies(hybrid);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], 1e-5, 1e-7)) << i;
  });
}

TEST(ZeroRedundancyOptions, ResumesWithAndWithoutMasters) {
  for (const bool masters : {true, false}) {
    const TemporaryDirectory directory;
    const auto run = [&](const zero::Mesh& mesh, int from, int to, bool loads, bool saves) {
      SmallNet model = net_of(torch::kBFloat16);
      ZeroRedundancyOptions options;
      options.save_masters = masters;
      options.schedule = zero::LrSchedule(zero::LinearLr{.warmup_steps = 2, .total_steps = 10});
      ZeroRedundancyOptimizer optimizer(model->named_parameters().pairs(), kWrapped, options, mesh);
      if (loads) EXPECT_EQ(optimizer.load(directory.path() / "step-00000003"), R"({"mine":1})");
      for (int step = from; step < to; ++step) {
        optimizer.zero_grad();
        backward_of(model, mesh, step);
        optimizer.step();
        if (saves && step == 2) optimizer.save(directory.path(), R"({"mine":1})");
      }
      return copies(model);
    };
    run_ranks(2, [&](const zero::Mesh& mesh) {
      const auto straight = run(mesh, 0, 6, false, true), resumed = run(mesh, 3, 6, true, false);
      if (masters) return expect_same_tensors(straight, resumed, "resumed");
      for (size_t i = 0; i < straight.size(); ++i)
        EXPECT_TRUE(torch::allclose(straight[i], resumed[i], 2e-2, 1e-2)) << i;
    });
    const zero::CheckpointReader reader(directory.path() / "step-00000003");
    EXPECT_EQ(reader.tensors().at("model/norm.weight").dtype, masters ? zero::Dtype::f32 : zero::Dtype::bf16);
    EXPECT_TRUE(reader.tensors().contains("optimizer/exp_avg/norm.weight"));
    // On another number of ranks.
    run_ranks(1, [&](const zero::Mesh& mesh) { run(mesh, 3, 4, true, false); });
  }
}

TEST(ZeroRedundancyOptions, TheOptimizersTypeMayBeBf16) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    SmallNet model = net_of(torch::kBFloat16), again = net_of(torch::kBFloat16);
    ZeroRedundancyOptions options;
    options.optimizer_dtype = torch::kBFloat16;
    ZeroRedundancyOptimizer optimizer(model->parameters(), kWrapped, options, mesh);
    EXPECT_EQ(optimizer.plan().rank.master_bytes, 0);
    ZeroRedundancyOptimizer second(again->parameters(), kWrapped, options, mesh);
    const double before = model->loss(batch_of(0, 4).tokens, batch_of(0, 4).targets).item<double>();
    for (int step = 0; step < 8; ++step) {
      optimizer.zero_grad();
      second.zero_grad();
      backward_of(model, mesh, 0);
      backward_of(again, mesh, 0);
      optimizer.step();
      second.step();
    }
    EXPECT_LT(model->loss(batch_of(0, 4).tokens, batch_of(0, 4).targets).item<double>(), before - 0.2);
    expect_same_tensors(copies(model), copies(again), "rounded alike");
    options.optimizer_dtype = torch::kHalf;
    SmallNet other = net_of(torch::kBFloat16);
    EXPECT_ERROR(ZeroRedundancyOptimizer(other->parameters(), kWrapped, options, mesh), Config,
                 "optimizer_dtype: expected fp32 or bf16, got");
  });
}

}  // namespace
