// Forwards alone through a pipeline: what its last stage gives is on all ranks, with the bits of one process,
// and so are the texts that a trained model makes, while no weight leaves its stage.
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/plain_models.h"
#include "support/ranks.h"
#include "support/small_run.h"
#include "support/temporary_directory.h"
#ifdef ZERO_TOOL
#include "support/tool_program.h"
#endif
#include "zero/consolidate.h"
#include "zero/from_config.h"
#include "zero/hf_model.h"
#include "zero/inference.h"
#include "zero/load_model.h"
#include "zero/pipeline.h"
#include "zero/train.h"

namespace zero {
namespace {

using testing::run_ranks;
using testing::SmallRun;

testing::RankOptions along(int pipeline, int tensor = 1) {
  testing::RankOptions options;
  options.mesh.axes = {{"pp", pipeline}, {"dp", -1}, {"tp", tensor}};
  return options;
}

torch::nn::Sequential net_of_six() {
  torch::manual_seed(4);
  return torch::nn::Sequential(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 9),
                               torch::nn::Tanh(), torch::nn::Linear(9, 3), torch::nn::Linear(3, 11));
}

struct Way {
  std::string schedule;
  int ranks;
  std::vector<int64_t> counts;
  int stage = 0, dp = 1;
};

class PipelineInfer : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, PipelineInfer,
                         ::testing::Values(Way{"1f1b", 2, {3, 3}, 3}, Way{"gpipe", 3, {4, 0, 2}, 1},
                                           Way{"interleaved", 2, {1, 2, 1, 2}},
                                           // The first rank has the last stage.
                                           Way{"zb-v", 2, {2, 1, 2, 1}, 2}, Way{"1f1b", 2, {5, 1}, 3, 2}));

// Before, between and after steps, of other shapes each time.
TEST_P(PipelineInfer, GivesAllRanksTheLastStagesResult) {
  const Way& way = GetParam();
  run_ranks(
      way.ranks * way.dp,
      [&](const Mesh& mesh) {
        torch::nn::Sequential net = net_of_six(), alone = net_of_six();
        Pipeline pipeline(*net, stages_of(*net, way.counts), SGD{.lr = 0.1}, {.stage = way.stage},
                          {.micro_batches = 4, .schedule = way.schedule}, mesh);
        Engine engine(*alone, SGD{.lr = 0.1}, {.stage = 0, .accumulation_steps = 4}, mesh);
        for (int step = 0; step < 3; ++step) {
          const auto x = torch::arange((step + 1) * 5, torch::kFloat).view({step + 1, 5}) / 7;
          const StageTensors found = pipeline.infer([&](int) { return StageTensors{x}; });
          const StageTensors sums =
              pipeline.infer([&](int) { return StageTensors{x}; },
                             [](const StageTensors& last) {
                               return StageTensors{last.at(0).sum(1), last.at(0).argmax(1)};
                             });
          {
            const torch::NoGradGuard no_grad;
            const auto expected = engine.forward([&] { return alone->forward(x); });
            ASSERT_EQ(found.size(), 1);
            EXPECT_FALSE(found[0].requires_grad());
            EXPECT_TRUE(found[0].equal(expected)) << "step " << step << ", rank " << mesh.rank();
            ASSERT_EQ(sums.size(), 2);
            EXPECT_TRUE(sums[0].equal(expected.sum(1)));
            EXPECT_TRUE(sums[1].equal(expected.argmax(1)));
          }
          pipeline.train([&](int) { return StageTensors{x}; },
                         [](const StageTensors& out, int) { return out.at(0).square().mean(); });
          for (int micro = 0; micro < 4; ++micro)
            engine.backward(engine.forward([&] { return alone->forward(x).square().mean(); }));
          pipeline.step();
          engine.step();
        }
      },
      along(way.ranks));
}

TEST(PipelineInference, AnErrorOnTheLastStageEndsAllRanks) {
  const auto results = testing::collect_ranks(
      3,
      [&](const Mesh& mesh) {
        torch::nn::Sequential net = net_of_six();
        Pipeline pipeline(*net, stages_of(*net, {2, 2, 2}), SGD{}, {}, {}, mesh);
        const auto x = torch::ones({2, 5});
        pipeline.infer([&](int) { return StageTensors{x}; },
                       [](const StageTensors&) -> StageTensors { throw std::runtime_error("no head"); });
      },
      along(3));
  ASSERT_EQ(results.size(), 3);
  for (const auto& result : results)
    EXPECT_NE(result.error.find("no head"), std::string::npos) << result.error;
}

at::Tensor logits_of(testing::PlainGpt& net, const at::Tensor& tokens) {
  at::Tensor x = net.wte(tokens) + net.wpe(torch::arange(tokens.size(1)));
  for (const auto& block : *net.h) x = block->as<testing::PlainGptBlockImpl>()->forward(x);
  return torch::nn::functional::linear(net.ln_f(x), net.wte->weight);
}

TEST(PipelineInference, OfAnUnmodifiedForward) {
  run_ranks(
      3,
      [&](const Mesh& mesh) {
        torch::manual_seed(2);
        const auto net = std::make_shared<testing::PlainGpt>();
        torch::manual_seed(2);
        const auto alone = std::make_shared<testing::PlainGpt>();
        const auto tokens = torch::arange(12, torch::kLong).view({2, 6});
        Pipeline pipeline(
            *net, [&](int) { return logits_of(*net, tokens).mean(); }, {}, SGD{}, {.stage = 3}, {}, mesh);
        for (const int64_t length : {6, 4}) {
          const auto some = tokens.narrow(1, 0, length);
          const at::Tensor found = pipeline.infer([&](int) { return logits_of(*net, some); });
          const torch::NoGradGuard no_grad;
          EXPECT_TRUE(found.equal(logits_of(*alone, some))) << "rank " << mesh.rank();
        }
      },
      along(3));
}

/// What a run leaves is used along so many ranks.
struct Use {
  std::string name;
  std::vector<std::string> overrides;
  int pipeline, dp = 1, tensor = 1;
  std::vector<int64_t> blocks = {};
};

class PipelineText : public ::testing::TestWithParam<Use> {};
const char* kLlama =
    R"(model={"type":"llama","vocab_size":64,"context_length":8,"layers":4,"width":16,"heads":2})";
const char* kNeox =
    R"(model={"type":"gpt_neox","vocab_size":64,"context_length":8,"layers":4,"width":16,"heads":2,"tied_head":true})";
INSTANTIATE_TEST_SUITE_P(
    Uses, PipelineText,
    ::testing::Values(Use{"two", {}, 2}, Use{"three_uneven", {}, 3, 1, 1, {1, 0, 3}},
                      Use{"three_by_balance", {}, 3}, Use{"two_by_two_ranks", {}, 2, 2},
                      Use{"two_by_two_along_tp", {}, 2, 1, 2}, Use{"llama_untied", {kLlama}, 2},
                      Use{"neox_tied", {kNeox}, 3}, Use{"bf16", {"bf16.enabled=true"}, 2},
                      Use{"adapters", {"lora.rank=2", R"(lora.targets=["h.1.*","h.2.*"])"}, 2}),
    [](const auto& info) { return info.param.name; });

// `blocks`: of stages by hand.
void expect_as_one_process(SavedModel saved, const Use& use, const TokenFile& file) {
  saved.config.parallel.stage_blocks = use.blocks;
  const std::vector<int64_t> prompt{3, 6, 9};
  // Beyond the context of 8, where the whole window is looked at anew.
  const GenerateOptions ways[] = {{.max_new_tokens = 14, .temperature = 0},
                                  {.max_new_tokens = 14, .temperature = 1.5, .seed = 7},
                                  {.max_new_tokens = 14, .top_k = 20, .top_p = 0.9, .seed = 8}};
  const EvaluateOptions evaluate{.sequence_length = 8, .batch_size = 3, .batches = 0};
  std::vector<std::vector<int64_t>> expected;
  EvalResult loss;
  {
    Inference alone(saved, Mesh::join({}));
    for (const GenerateOptions& way : ways) expected.push_back(alone.generate(prompt, way));
    loss = alone.evaluate(file, evaluate);
  }
  run_ranks(
      use.pipeline * use.dp * use.tensor,
      [&](const Mesh& mesh) {
        Inference piped(saved, mesh);
        for (size_t i = 0; i < std::size(ways); ++i)
          EXPECT_EQ(piped.generate(prompt, ways[i]), expected[i]) << "way " << i << ", rank " << mesh.rank();
        const EvalResult found = piped.evaluate(file, evaluate);
        EXPECT_EQ(found.samples, loss.samples);
        EXPECT_NEAR(found.loss, loss.loss, 1e-5 * loss.loss);
        // The last block is on the last stage alone.
        const auto names = piped.engine().parameter_names();
        const bool has_last_block = std::any_of(names.begin(), names.end(), [](const std::string& name) {
          return name.find(".3.") != std::string::npos;
        });
        EXPECT_EQ(has_last_block, mesh.group("pp").rank() + 1 == use.pipeline);
      },
      along(use.pipeline, use.tensor));
}

TEST_P(PipelineText, IsThatOfOneProcess) {
  const Use& use = GetParam();
  const SmallRun small;
  std::vector<std::string> overrides{"model.layers=4"};
  overrides.insert(overrides.end(), use.overrides.begin(), use.overrides.end());
  testing::train_on(1, small.config(1, overrides));
  expect_as_one_process(find_model(small.path() / "run"), use, TokenFile::open(small.path() / "eval.tokens"));
}

// A directory's weights, which one process would map, and adapters whose checkpoint leaves them out.
TEST(PipelineInference, OfADirectoryAndOfAdaptersAlone) {
  const SmallRun small;
  const TokenFile file = TokenFile::open(small.path() / "eval.tokens");
  testing::train_on(1, small.config(1, {"model.layers=4"}));
  const std::filesystem::path base = small.path() / "base";
  consolidate(find_model(small.path() / "run").checkpoint, base);
  expect_as_one_process(find_model(base), {.name = "directory", .overrides = {}, .pipeline = 3}, file);
  const nlohmann::json json = {{"train_batch_size", 12},
                               {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
                               {"model", {{"from", base}}},
                               {"lora", {{"rank", 2}, {"targets", {"h.1.*", "h.2.*"}}}},
                               {"data", {{"train", small.path() / "train.tokens"}}},
                               {"checkpoint", {{"trainable_only", true}}},
                               {"run", {{"directory", small.path() / "adapters"}, {"steps", 2}}}};
  testing::train_on(1, resolve(adopt_model(parse_config(json.dump(), "small")), 1));
  expect_as_one_process(find_model(small.path() / "adapters"),
                        {.name = "adapters", .overrides = {}, .pipeline = 2, .dp = 2}, file);
}

#ifdef ZERO_TOOL
TEST(PipelineTool, MakesTheSameTextOnAnyRanks) {
  const testing::TemporaryDirectory folder;
  std::filesystem::create_directories(folder.path() / "tokenizer");
  std::filesystem::copy_file(std::filesystem::path(ZERO_TEST_DATA) / "golden/tokenizer/tiny.json",
                             folder.path() / "tokenizer/tokenizer.json");
  folder.write("text.txt", testing::some_text());
  folder.write("train.json", R"({
    "train_batch_size": 4, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
    "model": {"vocab_size": 2000, "context_length": 16, "layers": 4, "width": 16, "heads": 2},
    "data": {"train": "train.tokens", "eval": "eval.tokens", "tokenizer": "tokenizer"},
    "parallel": {"timeout_s": 30, "threads_per_rank": 1, "pipeline": 2, "schedule": "zb-v"},
    "checkpoint": {"save_at_end": true},
    "run": {"directory": "run", "steps": 4, "seed": 1}})");
  const auto good = [&](std::vector<std::string> arguments) {
    const testing::ProgramResult result = testing::zero_in(folder.path(), std::move(arguments));
    EXPECT_EQ(result.exit, 0) << result.all();
    return result.output;
  };
  good({"tokenize", "text.txt", "--tokenizer", "tokenizer", "--out", "train.tokens", "--held-out",
        "eval.tokens", "--held-out-fraction", "0.1"});
  good({"train", "train.json", "--ranks", "2"});
  std::vector<std::string> texts, losses;
  // Along a pipeline of 2 where that divides the ranks: 1 and 3 have none.
  for (const char* ranks : {"1", "2", "3", "4"}) {
    const std::string text = good(
        {"generate", "run", "--prompt", "The clocks", "--tokens", "30", "--seed", "5", "--ranks", ranks});
    const std::string loss = good({"eval", "run", "--data", "eval.tokens", "--ranks", ranks});
    EXPECT_GT(text.size(), 20) << text;
    texts.push_back(text);
    losses.push_back(loss.substr(0, loss.find("  tokens")));
  }
  for (size_t i = 1; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i], texts[0]) << i + 1 << " ranks";
    EXPECT_EQ(losses[i], losses[0]) << i + 1 << " ranks";
  }
}
#endif

}  // namespace
}  // namespace zero
