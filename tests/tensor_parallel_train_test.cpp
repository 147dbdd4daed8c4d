// Runs with parallel.tensor: their losses are those of one rank, and what they leave is used by any ranks.
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/small_run.h"
#include "zero/evaluate.h"
#include "zero/generate.h"
#include "zero/inference.h"
#include "zero/load_model.h"
#include "zero/train.h"

namespace zero {
namespace {

using testing::losses_of;
using testing::RankOptions;
using testing::run_ranks;
using testing::SmallRun;

RankOptions sharing(int ranks) {
  RankOptions options;
  options.mesh.axes = {{"pp", 1}, {"dp", -1}, {"tp", ranks}};
  return options;
}

void train_shared(int ranks, const Config& config) {
  run_ranks(
      ranks, [&](const Mesh& mesh) { train(config, mesh, {}); }, sharing(config.parallel.tensor));
}

// With dropout, whose masks are those of one rank.
TEST(TensorParallelTrain, LossesAreThoseOfOneRank) {
  const SmallRun small;
  testing::train_on(1, small.config(1, {}, "one"));
  train_shared(2, small.config(2, {"parallel.tensor=2"}, "cut"));
  train_shared(2, small.config(2, {"parallel.tensor=2", "parallel.sequence=true"}, "sequence"));
  train_shared(
      2, small.config(2, {"tensor_parallel_size=2", "disable_embedding_parallelization=true"}, "vocabulary"));
  const std::vector<double> expected = losses_of(small.path() / "one");
  ASSERT_EQ(expected.size(), 6);
  for (const char* run : {"cut", "sequence", "vocabulary"}) {
    const std::vector<double> losses = losses_of(small.path() / run);
    ASSERT_EQ(losses.size(), expected.size()) << run;
    for (size_t step = 0; step < losses.size(); ++step)
      EXPECT_NEAR(losses[step], expected[step], 2e-4) << run << " step " << step;
  }
}

TEST(TensorParallelTrain, WhatARunLeavesIsUsedByAnyRanks) {
  const SmallRun small;
  train_shared(4, small.config(4, {"parallel.tensor=2", "parallel.sequence=true"}));
  const SavedModel saved = find_model(small.path() / "run");
  const std::vector<int64_t> prompt{3, 6, 9};
  const GenerateOptions greedy{.max_new_tokens = 4, .temperature = 0};
  std::vector<int64_t> expected;
  double loss = 0;
  const TokenFile file = TokenFile::open(small.path() / "eval.tokens");
  const EvaluateOptions options{.sequence_length = 8, .batch_size = 3, .batches = 0};
  {
    Inference alone(saved, Mesh::join({}));
    expected = alone.generate(prompt, greedy);
    loss = alone.evaluate(file, options).loss;
  }
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        Inference cut(saved, mesh);
        EXPECT_EQ(cut.generate(prompt, greedy), expected);
        EXPECT_NEAR(cut.evaluate(file, options).loss, loss, 1e-5);
      },
      sharing(2));
}

TEST(TensorParallelTrain, HeadsThatRanksCannotShareAreRefused) {
  const SmallRun small;
  const Config config = small.config(4, {"parallel.tensor=4"});
  const auto results = testing::collect_ranks(
      4, [&](const Mesh& mesh) { train(config, mesh, {}); }, sharing(4));
  for (const auto& result : results)
    EXPECT_NE(result.error.find(
                  "parallel.tensor: tensor parallelism: 4 ranks cannot share 2 heads; at most 2 ranks could"),
              std::string::npos)
        << result.error;
}

}  // namespace
}  // namespace zero
