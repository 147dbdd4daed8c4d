// A trained model sharded over ranks: the same text and loss as the whole model on one rank, what is gathered
// for them, and errors that all ranks see.
#include "zero/inference.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>

#include "support/expect_error.h"
#include "support/model_directory.h"
#include "support/small_run.h"
#include "zero/hf_model.h"

namespace zero {
namespace {

using testing::run_ranks;
using testing::SmallRun;
using testing::train_on;
using testing::write_model_directory;

const std::vector<int64_t> kPrompt{1, 2};
constexpr int kNewTokens = 6;
const GenerateOptions kGreedy{.max_new_tokens = kNewTokens, .temperature = 0};
const GenerateOptions kDrawn{.max_new_tokens = kNewTokens, .seed = 5};
const EvaluateOptions kEvaluate{.sequence_length = 8, .batch_size = 2};  // 17 samples: some ranks run out

/// What the whole model says on one rank, without an engine.
struct Expected {
  std::vector<int64_t> greedy, drawn;
  double loss = 0;
};

class InferenceTest : public ::testing::Test {
 protected:
  Expected expected_of(const SavedModel& saved) const {
    const auto model = load_model(saved);
    model->eval();
    Expected expected{.greedy = generate_tokens(*model, kPrompt, kGreedy),
                      .drawn = generate_tokens(*model, kPrompt, kDrawn)};
    const auto results = run_ranks(1, [&](const Mesh& mesh) {
      const auto loss = [&](const auto& tokens, const auto& targets) { return model->loss(tokens, targets); };
      testing::hand_back(torch::full({1}, evaluate(loss, text(), kEvaluate, mesh).loss, at::kDouble));
    });
    std::memcpy(&expected.loss, results.at(0).bytes.data(), sizeof expected.loss);
    return expected;
  }

  void expect_the_same(const SavedModel& saved, const Expected& expected, int ranks,
                       int64_t budget_bytes) const {
    run_ranks(ranks, [&](const Mesh& mesh) {
      Inference inference(saved, mesh, {.budget_bytes = budget_bytes});
      EXPECT_EQ(inference.generate(kPrompt, kGreedy), expected.greedy);
      EXPECT_EQ(inference.generate(kPrompt, kDrawn), expected.drawn);
      const EvalResult result = inference.evaluate(text(), kEvaluate);
      EXPECT_EQ(result.samples, 17);
      EXPECT_NEAR(result.loss, expected.loss, 1e-6);
    });
  }

  TokenFile text() const { return TokenFile::open(small_.path() / "eval.tokens"); }

  // A run that fine-tunes adapters of the directory's model.
  Config fine_tuning(const std::filesystem::path& model, const std::string& run, bool trainable_only) const {
    const nlohmann::json json = {{"train_batch_size", 12},
                                 {"zero_optimization", {{"stage", 3}}},
                                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
                                 {"model", {{"from", model}}},
                                 {"lora", {{"rank", 2}, {"targets", {"*.q_proj"}}}},
                                 {"data", {{"train", small_.path() / "train.tokens"}}},
                                 {"checkpoint", {{"trainable_only", trainable_only}}},
                                 {"parallel", {{"timeout_s", 30}}},
                                 {"run", {{"directory", small_.path() / run}, {"steps", 2}, {"seed", 3}}}};
    return resolve(adopt_model(parse_config(json.dump(), "small")), 2);
  }

  testing::TemporaryDirectory directory_;
  SmallRun small_;
};

TEST_F(InferenceTest, DirectoriesGiveTheSameOnEveryNumberOfRanks) {
  for (const auto& [name, section] : testing::kSmallModels) {
    SavedModel saved = find_model(write_model_directory(directory_, name, section));
    const Expected expected = expected_of(saved);
    for (const bool share : {true, false}) {
      saved.config.residency.share = share;
      for (const int ranks : {1, 2, 3})
        for (const int64_t budget : {kAllBytes, int64_t{-1}, int64_t{0}}) {
          SCOPED_TRACE(name + (share ? " shared " : " ") + std::to_string(ranks));
          expect_the_same(saved, expected, ranks, budget);
        }
    }
  }
}

// Those of bf16 files, computed in bf16, and of fp32 ones, where nothing is converted.
TEST_F(InferenceTest, MappedWeightsGiveTheBitsOfReadOnes) {
  for (const auto& [name, section] : testing::kSmallModels) {
    const SavedModel saved = find_model(write_model_directory(directory_, name, section));
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(name + " " + std::to_string(ranks));
      run_ranks(ranks, [&](const Mesh& mesh) {
        Inference mapped(saved, mesh), read(saved, mesh, {.map_weights = false});
        EXPECT_TRUE(mapped.is_mapped());
        EXPECT_FALSE(read.is_mapped());
        EXPECT_EQ(mapped.generate(kPrompt, kDrawn), read.generate(kPrompt, kDrawn));
        EXPECT_EQ(mapped.evaluate(text(), kEvaluate).loss, read.evaluate(text(), kEvaluate).loss);
        EXPECT_ERROR(mapped.engine(), Usage, "mapped weights need none");
      });
    }
  }
}

TEST_F(InferenceTest, WeightsOfAnotherTypeAreReadOrCopied) {
  SavedModel saved =
      find_model(write_model_directory(directory_, "llama", testing::kSmallModels.at("llama")));
  saved.config.precision.bf16 = !saved.config.precision.bf16;
  saved.config.precision.param_dtype = saved.config.precision.bf16 ? Dtype::bf16 : Dtype::f32;
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](const Mesh& mesh) {
      Inference any(saved, mesh), read(saved, mesh, {.map_weights = false});
      EXPECT_EQ(any.is_mapped(), ranks == 1);
      EXPECT_EQ(any.generate(kPrompt, kGreedy), read.generate(kPrompt, kGreedy));
    });
}

TEST_F(InferenceTest, CheckpointsGiveTheSameOnOtherRanks) {
  train_on(2, small_.config(2));
  const auto base = write_model_directory(directory_, "llama", testing::kSmallModels.at("llama"));
  train_on(2, fine_tuning(base, "adapters", false));
  train_on(2, fine_tuning(base, "adapters-alone", true));
  for (const char* run : {"run", "adapters", "adapters-alone"}) {
    SavedModel saved = find_model(small_.path() / run);
    saved.config.residency.share = false;
    const Expected expected = expected_of(saved);
    for (const int ranks : {1, 3}) {
      SCOPED_TRACE(run);
      expect_the_same(saved, expected, ranks, kAllBytes);
    }
  }
  // What the checkpoint leaves out is another model's now.
  write_model_directory(directory_, "llama", testing::kSmallModels.at("llama"),
                        [](std::vector<testing::FileTensor>& tensors) { tensors[3].bytes[0] ^= 1; });
  const SavedModel saved = find_model(small_.path() / "adapters-alone");
  run_ranks(3,
            [&](const Mesh& mesh) { EXPECT_ERROR(Inference(saved, mesh), Config, "is not the one that"); });
}

// Where ranks share no memory: once a scope, whatever the tokens and batches; with no budget, each time.
TEST_F(InferenceTest, GathersEachUnitOnceForAText) {
  SavedModel saved =
      find_model(write_model_directory(directory_, "llama", testing::kSmallModels.at("llama")));
  saved.config.residency.share = false;
  run_ranks(2, [&](const Mesh& mesh) {
    Inference once(saved, mesh);
    const int64_t units = std::ssize(once.engine().plan().units);
    EXPECT_EQ(once.engine().stats().all_gathers, 0);
    once.generate(kPrompt, kGreedy);
    EXPECT_EQ(once.engine().stats().all_gathers, units);
    once.evaluate(text(), kEvaluate);
    EXPECT_EQ(once.engine().stats().all_gathers, 2 * units);
    EXPECT_EQ(once.engine().stats().resident_bytes, 0);  // between scopes: shards alone

    Inference lean(saved, mesh, {.budget_bytes = 0});
    lean.generate(kPrompt, kGreedy);
    EXPECT_GE(lean.engine().stats().all_gathers, kNewTokens * units);
    int64_t largest = 0;
    for (const UnitLayout& unit : lean.engine().plan().units) largest = std::max(largest, unit.slab_bytes());
    EXPECT_LE(lean.engine().stats().peak_resident_bytes, largest);
    EXPECT_LT(lean.engine().stats().peak_resident_bytes, once.engine().stats().peak_resident_bytes);
  });
}

TEST_F(InferenceTest, WhatOneRankCannotReadAllSay) {
  train_on(2, small_.config(2));
  const SavedModel saved = find_model(small_.path() / "run");
  for (const auto& result : testing::collect_ranks(2, [&](const Mesh& mesh) {
         SavedModel mine = saved;
         if (mesh.rank() == 1) mine.config.model.layers = 3;
         Inference(mine, mesh);
       }))
    EXPECT_NE(result.error.find("it has no parameter h.2."), std::string::npos) << result.error;
}

}  // namespace
}  // namespace zero
