// bf16 parameters without a master: bits that depend on nothing but the parameter and the step, exact in the
// mean, kept by checkpoints.
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <cmath>
#include <cstring>
#include <map>

#include "checkpoint/names.h"
#include "optim/kernels/kernels.h"
#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
using zero::kernels::RoundingKey;

std::vector<uint16_t> rounded(const zero::kernels::KernelSet& set, const std::vector<float>& values,
                              RoundingKey key, int64_t first = 0) {
  std::vector<uint16_t> halves(values.size());
  set.round(values.data(), halves.data(), static_cast<int64_t>(values.size()), key, first);
  return halves;
}

float value_of(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

TEST(StochasticRounding, KernelsAgreeAndAnElementsBitsDependOnItsNumberAlone) {
  std::vector<float> values;
  for (int i = 0; i < 5003; ++i)
    values.push_back(std::sin(static_cast<float>(i)) * std::pow(10.F, i % 40 - 20.F));
  values[17] = std::nanf("");
  values[18] = -HUGE_VALF;
  values[19] = -0.F;
  const auto expected = rounded(*zero::kernels::available_kernels().front(), values, {77});
  for (const auto* set : zero::kernels::available_kernels()) {
    EXPECT_EQ(rounded(*set, values, {77}), expected) << set->name;
    for (const int64_t from : {1234, 1235}) {
      const auto end = rounded(*set, {values.begin() + from, values.end()}, {77}, from);
      EXPECT_TRUE(std::equal(end.begin(), end.end(), expected.begin() + from)) << set->name << from;
    }
  }
  EXPECT_EQ(expected[17], 0x7fc0);
  EXPECT_EQ(expected[18], 0xff80);
  EXPECT_EQ(expected[19], 0x8000);
  EXPECT_NE(rounded(*zero::kernels::available_kernels().front(), values, {78}), expected);
  // Across 2^33, where the pairs' numbers no longer fit 32 bits.
  constexpr int64_t kFar = (int64_t{1} << 33) - 100;
  const std::vector<float> same(200, 1.001F);
  const auto far = rounded(zero::kernels::best_kernels(), same, {5}, kFar);
  const auto cut = rounded(zero::kernels::best_kernels(), std::vector<float>(100, 1.001F), {5}, kFar + 100);
  EXPECT_TRUE(std::equal(cut.begin(), cut.end(), far.begin() + 100));
  EXPECT_NE(cut, rounded(zero::kernels::best_kernels(), std::vector<float>(100, 1.001F), {5}, 0));
}

TEST(StochasticRounding, IsExactInTheMeanAndLeavesWhatFits) {
  constexpr int kDraws = 1 << 18;
  for (const float value : {1.F, -2.5F, 1.001F, -1.006F, 3e-5F, 1e-39F, 0.1F}) {
    const auto halves = rounded(zero::kernels::best_kernels(), std::vector<float>(kDraws, value), {3});
    const float low = value_of(*std::min_element(halves.begin(), halves.end(),
                                                 [](auto a, auto b) { return value_of(a) < value_of(b); })),
                high = value_of(*std::max_element(halves.begin(), halves.end(),
                                                  [](auto a, auto b) { return value_of(a) < value_of(b); }));
    double sum = 0;
    for (const uint16_t half : halves) sum += value_of(half);
    if (low == high) {
      EXPECT_EQ(low, value) << "what bf16 holds";
      continue;
    }
    EXPECT_LT(low, value);
    EXPECT_GT(high, value);
    const double up = (double{value} - low) / (double{high} - low);
    const double sigma = (double{high} - low) * std::sqrt(up * (1 - up) / kDraws);
    EXPECT_NEAR(sum / kDraws, value, 4 * sigma) << value;
  }
}

TEST(StochasticRounding, NeighboursAndStepsAreIndependent) {
  // Half way: each a fair coin. Of pairs a quarter is up twice.
  constexpr int kDraws = 1 << 16;
  const float half_way = 1 + 0x1p-8F;
  const auto coins = [&](RoundingKey key, int64_t first) {
    std::vector<int> up;
    for (const uint16_t one :
         rounded(zero::kernels::best_kernels(), std::vector<float>(kDraws, half_way), key, first))
      up.push_back(value_of(one) > 1 ? 1 : 0);
    return up;
  };
  const auto here = coins({11}, 0);
  const double sigma = std::sqrt(kDraws * 0.25 * 0.75);
  for (const auto& other : {coins({11}, 1), coins({11}, 256), coins({11}, 4096), coins({12}, 0),
                            coins({11 + (uint64_t{1} << 32)}, 0)}) {
    int both = 0;
    for (int i = 0; i < kDraws; ++i) both += here[i] * other[i];
    EXPECT_NEAR(both, kDraws / 4., 4.5 * sigma);
  }
}

constexpr int kRoundingSteps = 5;

zero::EngineOptions rounding_options(int stage) {
  zero::EngineOptions options{.stage = stage, .dtype = torch::kBFloat16};
  options.stochastic_rounding = true;
  options.rounding_seed = 9;
  options.group_numel = 200;
  return options;
}

using Values = std::map<std::string, Tensor>;

struct Trained {
  Trained(const zero::Mesh& mesh, const zero::OptimizerSpec& rule, const zero::EngineOptions& options) {
    torch::manual_seed(5);
    model = SmallNet();
    engine = std::make_unique<zero::Engine>(*model, rule, options, mesh);
  }
  // The same batch on every rank: their mean has the bits of one.
  void steps(int from, int to) {
    for (int i = from; i < to; ++i) {
      const Batch batch = batch_of(i, 2);
      engine->backward(engine->forward([&] { return model->loss(batch.tokens, batch.targets); }));
      engine->step();
    }
  }
  std::string bytes() {
    std::string all;
    const auto add = [&](const Tensor& of) {
      all.append(static_cast<const char*>(of.contiguous().data_ptr()), of.nbytes());
    };
    for (const std::string& name : engine->parameter_names()) add(engine->full_parameter(name));
    return all;
  }
  SmallNet model{nullptr};
  std::unique_ptr<zero::Engine> engine;
};

TEST(StochasticRounding, TheSameBitsForAllRanksStagesTiersAndRules) {
  const std::vector<zero::OptimizerSpec> rules{zero::AdamW{.lr = 1e-2, .weight_decay = 0.1},
                                               zero::SGD{.lr = 0.1},
                                               zero::Lion{.lr = 1e-3},
                                               zero::LAMB{.lr = 1e-2},
                                               zero::LARS{.lr = 1},
                                               zero::Muon{.lr = 1e-2},
                                               zero::AdamW{.lr = 1e-2, .states_8bit = true},
                                               zero::Adafactor{.beta1 = 0.9}};
  std::map<size_t, std::string> first;
  for (const int ranks : {1, 2, 4})
    for (const int stage : {0, 1, 2, 3}) {
      if (ranks == 4 && (stage == 1 || stage == 2)) continue;
      const auto results = run_ranks(ranks, [&](const zero::Mesh& mesh) {
        const TemporaryDirectory directory;
        for (size_t i = 0; i < rules.size(); ++i) {
          auto options = rounding_options(stage);
          if (stage == 3 && i < 2) {
            options.tiers = {.parameter = zero::Tier::Disk, .optimizer = zero::Tier::Disk};
            options.offload.path = directory.path();
            options.offload.piece_numel = 2048;
          }
          if (stage == 2 && i < 2) {
            options.tiers.optimizer = zero::Tier::Disk;
            options.offload.path = directory.path();
            options.offload.piece_numel = 1024;
          }
          Trained trained(mesh, rules[i], options);
          trained.steps(0, kRoundingSteps);
          EXPECT_EQ(trained.engine->plan().rank.master_bytes, 0);
          if (mesh.rank() == 0)
            hand_back(trained.bytes());
          else
            trained.bytes();
        }
      });
      const std::string& all = results[0].bytes;
      const size_t each = all.size() / rules.size();
      ASSERT_GT(each, 1000u);
      for (size_t i = 0; i < rules.size(); ++i) {
        const std::string here = all.substr(i * each, each);
        if (!first.contains(i)) first[i] = here;
        EXPECT_TRUE(here == first[i]) << "rule " << i << ", " << ranks << " ranks, stage " << stage;
      }
    }
}

TEST(StochasticRounding, ResumesBitForBitFromACheckpointInBf16) {
  const TemporaryDirectory directory;
  std::string whole;
  run_ranks(1, [&](const zero::Mesh& mesh) {
    Trained trained(mesh, zero::AdamW{.lr = 1e-2}, rounding_options(0));
    trained.steps(0, 3);
    trained.engine->save(directory.path());
  });
  const auto straight = run_ranks(1, [&](const zero::Mesh& mesh) {
    Trained trained(mesh, zero::AdamW{.lr = 1e-2}, rounding_options(0));
    trained.steps(0, 6);
    hand_back(trained.bytes());
  });
  const auto resumed = run_ranks(2, [&](const zero::Mesh& mesh) {
    Trained trained(mesh, zero::AdamW{.lr = 1e-2}, rounding_options(3));
    trained.engine->load(directory.path() / "step-00000003");
    trained.steps(3, 6);
    const std::string bytes = trained.bytes();
    if (mesh.rank() == 0) hand_back(bytes);
  });
  EXPECT_EQ(straight[0].bytes, resumed[0].bytes);
  const zero::CheckpointReader reader(directory.path() / "step-00000003");
  int64_t parameters = 0;
  for (const auto& [name, tensor] : reader.tensors()) {
    if (!name.starts_with(zero::checkpoint::kModelPrefix)) continue;
    ++parameters;
    EXPECT_EQ(tensor.dtype, zero::Dtype::bf16) << name;
  }
  EXPECT_GT(parameters, 10);
}

struct OneWeightImpl : torch::nn::Module {
  explicit OneWeightImpl(int64_t numel) : weight(register_parameter("weight", torch::ones({numel}))) {}
  Tensor weight;
};
TORCH_MODULE(OneWeight);

// Steps of a hundredth of what bf16 can tell apart near 1: rounded to nearest nothing would move.
TEST(StochasticRounding, SmallStepsAddUpInTheMean) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    constexpr int64_t kNumel = 8192;
    constexpr int kCount = 100;
    constexpr double kRate = 4e-5, kBelow1 = 0x1p-8;
    OneWeight model(kNumel);
    auto options = rounding_options(0);
    zero::Engine engine(*model, zero::SGD{.lr = kRate}, options, mesh);
    for (int i = 0; i < kCount; ++i) {
      engine.backward(engine.forward([&] { return model->weight.sum(torch::kFloat); }));
      engine.step();
    }
    const Tensor after = engine.full_parameter("weight").to(torch::kDouble);
    // The steps of an element are independent draws of one or none of kBelow1.
    const double share = kRate / kBelow1;
    const double sigma = kBelow1 * std::sqrt(kCount * share * (1 - share) / kNumel);
    EXPECT_NEAR(after.mean().item<double>(), 1 - kCount * kRate, 4 * sigma);
    EXPECT_LT(after.min().item<double>(), 1 - kCount * kRate - kBelow1 / 2) << "they differ";
  });
}

TEST(StochasticRounding, WhatCannotBeIsRefused) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    SmallNet model;
    auto options = rounding_options(0);
    options.dtype = torch::kFloat;
    EXPECT_ERROR(zero::Engine(*model, zero::AdamW{}, options, mesh), Config,
                 "stochastic_rounding: no parameter is trained in bf16");
  });
  EXPECT_ERROR(zero::make_plan({}, rounding_options(1), {.ranks = 2}, {.splits_master = false}), Unsupported,
               "a torch optimizer updates fp32 masters");
  EXPECT_ERROR(zero::make_plan({}, rounding_options(1), {.ranks = 2, .on_cpu = false}), Unsupported,
               "parameters without a master are for ranks on CPU");
}

}  // namespace
