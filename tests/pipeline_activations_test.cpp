// What `zero plan` says that a pipeline's ranks keep of activations, and what they hold while a step goes on.
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "plan/pipeline_plan.h"
#include "plan/stage_balance.h"
#include "support/ranks.h"
#include "train/model_stages.h"
#include "zero/config.h"
#include "zero/cpu_allocator.h"
#include "zero/cpu_operators.h"
#include "zero/from_config.h"
#include "zero/language_model.h"
#include "zero/lazy.h"
#include "zero/model_spec.h"
#include "zero/pipeline.h"

namespace zero {
namespace {

using nlohmann::json;

constexpr int kRanks = 2, kMicroBatches = 6;
constexpr int64_t kSequence = 128, kVocabulary = 256;

Config config_of(const std::string& schedule, int64_t batch, const json& recompute) {
  const json text{{"train_micro_batch_size_per_gpu", batch},
                  {"gradient_accumulation_steps", kMicroBatches},
                  {"zero_optimization", {{"stage", 1}}},
                  {"data", {{"sequence_length", kSequence}}},
                  {"activation_checkpointing", {{"recompute", recompute}}},
                  {"parallel", {{"pipeline", kRanks}, {"schedule", schedule}, {"balance", "uniform"}}},
                  {"model",
                   {{"type", "gpt2"},
                    {"vocab_size", kVocabulary},
                    {"context_length", kSequence},
                    {"layers", 12},
                    {"width", 128},
                    {"heads", 4},
                    {"dropout", 0}}}};
  return resolve(parse_config(text.dump(), "small"), kRanks);
}

// The most that a rank holds behind a stage's forward, beyond what it held before the step.
int64_t most_held(const Config& config, const Mesh& mesh) {
  torch::manual_seed(1);
  const auto model = lazily([&] { return make_language_model(shape_of(config)); });
  model->set_recompute(config.recompute);
  const auto blocks = stage_blocks_of(config, trained_spec(config), stages_of_pipeline(config.parallel));
  auto stages = training::stages_of_model(model, blocks, [](int) {});
  int64_t most = 0, before = 0;
  for (PipelineStage& stage : stages)
    stage.forward = [forward = stage.forward, &most, &before](const StageTensors& inputs, int index) {
      StageTensors result = forward(inputs, index);
      most = std::max(most, cpu_allocator_stats().used_bytes - before);
      return result;
    };
  EngineOptions options = engine_options_of(config, 1);
  const PipelineOptions how{
      .micro_batches = kMicroBatches, .schedule = config.parallel.schedule, .chunks = config.parallel.chunks};
  Pipeline pipeline(*model, stages, AdamW{}, options, how, mesh);
  const auto tokens = torch::randint(kVocabulary, {config.train_micro_batch_size, kSequence}, torch::kLong);
  before = cpu_allocator_stats().used_bytes;
  pipeline.train([&](int) { return StageTensors{tokens}; },
                 [&](const StageTensors& out, int) { return model->last_part_loss(out.at(0), tokens); });
  return most;
}

// Of two sizes of micro-batches, which gradients and states do not depend on.
void compare(const std::string& schedule, const json& recompute, const Mesh& mesh) {
  constexpr int64_t kFew = 2, kMany = 6;
  const int rank = mesh.group("pp").rank();
  const auto planned = [&](int64_t batch) {
    const Config config = config_of(schedule, batch, recompute);
    const ModuleSpec spec = trained_spec(config);
    return plan_pipeline(config, spec, spec, kRanks, 1, 0).ranks.at(rank).activations.kept;
  };
  const auto held = [&](int64_t batch) { return most_held(config_of(schedule, batch, recompute), mesh); };
  const double measured = static_cast<double>(held(kMany) - held(kFew));
  EXPECT_NEAR(measured / static_cast<double>(planned(kMany) - planned(kFew)), 1, 0.05)
      << schedule << ", rank " << rank << ", recompute " << recompute << ", measured " << measured
      << ", planned " << planned(kMany) - planned(kFew);
}

TEST(PipelineActivations, AreWhatRanksHold) {
  testing::RankOptions options;
  options.mesh.axes = {{"pp", kRanks}, {"dp", -1}};
  testing::run_ranks(
      kRanks,
      [&](const Mesh& mesh) {
        use_training_allocator();
        const CpuOperators fast;
        for (const char* schedule : {"1f1b", "gpipe", "interleaved"})
          for (const json& recompute : {json("none"), json("all"), json(2)})
            compare(schedule, recompute, mesh);
      },
      options);
}

}  // namespace
}  // namespace zero
