// Recomputation and tensor parallelism together: the same bits as without recomputation, at any mesh, and
// parts of inputs in place of whole ones.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "support/disk_directory.h"
#include "support/ranks.h"
#include "support/small_run.h"
#include "zero/block_chain.h"
#include "zero/cpu_allocator.h"
#include "zero/gpt2.h"
#include "zero/language_model_plan.h"
#include "zero/recompute.h"
#include "zero/tensor_parallel.h"
#include "zero/train.h"

namespace zero {
namespace {

using testing::DiskDirectory;
using testing::RankOptions;
using testing::SmallRun;
using Overrides = std::vector<std::string>;

Overrides with(Overrides some, const Overrides& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

RankOptions layers_shared_by(int ranks) {
  RankOptions options;
  options.mesh.axes = {{"pp", 1}, {"dp", -1}, {"tp", ranks}};
  return options;
}

/// With dropout, wide enough for its tensors to be worth moving.
Overrides run_of(bool sequence) {
  return {"model.width=64",     "model.layers=3",
          "run.steps=3",        "run.eval_batches=1",
          "parallel.tensor=2",  std::string("parallel.sequence=") + (sequence ? "true" : "false"),
          "train_batch_size=24"};
}

Overrides recomputing(const std::string& which, const Overrides& more = {}) {
  return with({"activation_checkpointing.recompute=" + which}, more);
}

const Overrides kPartition{"activation_checkpointing.partition_activations=true"};

/// Ways of keeping less of a forward, by the run's name.
std::map<std::string, Overrides> ways_on(const DiskDirectory& disk) {
  const Overrides on_disk{"activation_checkpointing.offload=disk",
                          "activation_checkpointing.offload_path=" + disk.path().string()};
  return {{"all", recomputing("all")},
          {"second", recomputing("2")},
          {"auto", recomputing("auto", {"activation_checkpointing.memory=800KiB"})},
          {"disk", on_disk},
          {"inputs_on_disk", recomputing("all", on_disk)},
          {"parts", recomputing("all", kPartition)},
          {"parts_on_disk", recomputing("all", with(on_disk, kPartition))},
          {"auto_parts", recomputing("auto", with({"activation_checkpointing.memory=800KiB"}, kPartition))}};
}

class TensorParallelRecompute : public ::testing::TestWithParam<bool> {};

TEST_P(TensorParallelRecompute, RunsAreTheSameBits) {
  const bool sequence = GetParam();
  const SmallRun small;
  const DiskDirectory disk;
  for (const int ranks : {2, 4}) {
    const auto run = [&](const std::string& name, const Overrides& way) {
      const Config config = small.config(ranks, with(run_of(sequence), way), name);
      testing::run_ranks(
          ranks, [&](const Mesh& mesh) { train(config, mesh, {.overwrite = true}); }, layers_shared_by(2));
    };
    run("plain", {});
    for (const auto& [name, way] : ways_on(disk)) {
      if (ranks == 4 && name != "all" && name != "parts" && name != "auto") continue;
      SCOPED_TRACE(name + " on " + std::to_string(ranks) + " ranks");
      run(name, way);
      EXPECT_EQ(testing::course_of(small.path() / name), testing::course_of(small.path() / "plain"));
      EXPECT_EQ(testing::newest_values(small.path() / name), testing::newest_values(small.path() / "plain"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sequence, TensorParallelRecompute, ::testing::Bool());

constexpr Gpt2Shape kShape{
    .vocab_size = 61, .context_length = 64, .layers = 4, .width = 128, .heads = 4, .dropout = 0.1};
constexpr int64_t kRows = 6, kTokens = 64;  // parts of 32 KiB and more are measured
constexpr int64_t kInputBytes = kRows * kTokens * kShape.width * 4;

struct Passed {
  double loss = 0;
  std::vector<at::Tensor> gradients;
  int64_t waiting_bytes = 0;   // in memory between forward and backward
  int64_t gathered_bytes = 0;  // over "tp"
  int64_t gathers = 0, sums = 0;
};

/// One forward and backward of a model whose layers ranks share.
Passed pass_with(const RecomputePolicy& policy, const Mesh& mesh) {
  torch::manual_seed(7);
  const auto model = make_language_model(kShape);
  model->set_recompute(policy);
  const auto parallel =
      parallelize(*model, tensor_parallel_plan(*model, kShape, mesh.group("tp").size()), mesh);
  const Group tp = mesh.group("tp");
  const Traffic gathered = tp.traffic(Operation::AllGather), summed = tp.traffic(Operation::AllReduce);
  torch::manual_seed(11);
  const at::Tensor tokens = torch::randint(0, kShape.vocab_size, {kRows, kTokens}, torch::kLong);
  const int64_t before = cpu_allocator_stats().used_bytes;
  const at::Tensor loss = parallel.forward([&] { return model->loss(tokens, tokens); });
  Passed passed;
  passed.loss = loss.item<double>();
  passed.waiting_bytes = cpu_allocator_stats().used_bytes - before;
  loss.backward();
  for (const at::Tensor& parameter : model->parameters()) passed.gradients.push_back(parameter.grad());
  passed.gathered_bytes = tp.traffic(Operation::AllGather).bytes - gathered.bytes;
  passed.gathers = tp.traffic(Operation::AllGather).calls - gathered.calls;
  passed.sums = tp.traffic(Operation::AllReduce).calls - summed.calls;
  return passed;
}

TEST(PartitionedInputs, TakeEachRanksShareOfTheMemoryAndOneGatherABlock) {
  for (const int ranks : {2, 4})
    testing::run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          use_training_allocator();
          const Passed plain = pass_with({}, mesh);
          const Passed whole = pass_with({.every = kRecomputeAll}, mesh);
          const Passed parts = pass_with({.every = kRecomputeAll, .partition_inputs = true}, mesh);
          for (const Passed* const other : {&whole, &parts}) {
            EXPECT_EQ(other->loss, plain.loss);
            ASSERT_EQ(other->gradients.size(), plain.gradients.size());
            for (size_t i = 0; i < plain.gradients.size(); ++i)
              EXPECT_TRUE(other->gradients[i].equal(plain.gradients[i])) << i;
          }
          EXPECT_LT(whole.waiting_bytes, plain.waiting_bytes / 3);
          const int64_t share = kInputBytes / ranks;
          EXPECT_NEAR(whole.waiting_bytes - parts.waiting_bytes, kShape.layers * (kInputBytes - share),
                      kInputBytes / 50);
          EXPECT_EQ(whole.gathers, plain.gathers);
          EXPECT_EQ(parts.gathers, whole.gathers + kShape.layers);
          EXPECT_EQ(parts.gathered_bytes - whole.gathered_bytes, kShape.layers * kInputBytes);
          // Both of a block's sums come again: the dropout behind the second one saves its mask.
          EXPECT_EQ(whole.sums, plain.sums + 2 * kShape.layers);
          EXPECT_EQ(parts.sums, whole.sums);
        },
        layers_shared_by(ranks));
}

// Inputs that cannot be cut evenly, are views, or are smaller than the ranks.
TEST(PartitionedInputs, HaveAnySizesAndStrides) {
  testing::run_ranks(
      3,
      [&](const Mesh& mesh) {
        torch::manual_seed(3);
        torch::nn::Linear layer(6, 9);
        const auto parallel = parallelize(*layer, {{"*", "colwise"}}, mesh);
        const std::vector<at::Tensor> inputs{torch::randn({7, 6}), torch::randn({6, 5}).t(),
                                             torch::randn({6}).expand({4, 6}),
                                             torch::randn({9, 12}).slice(1, 3, 9)};
        for (const at::Tensor& values : inputs) {
          const auto gradient = [&](bool partition) {
            const at::Tensor x = values.detach().requires_grad_();
            parallel
                .forward([&] {
                  const at::Tensor y = recompute(
                      [&](const at::Tensor& in) { return gathered(layer->forward(in.tanh())).sin(); }, x,
                      {.partition_inputs = partition});
                  return y.square().sum();
                })
                .backward();
            return x.grad();
          };
          EXPECT_TRUE(gradient(true).equal(gradient(false))) << values.sizes();
        }
      },
      layers_shared_by(3));
}

}  // namespace
}  // namespace zero
