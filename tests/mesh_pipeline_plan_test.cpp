// What `zero plan` says of the ranks of a pipeline whose layers are shared, beside what a run's ranks hold
// and send: every place of the mesh, field by field, and messages to the element.
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "plan/pipeline_plan.h"
#include "stages/messages.h"
#include "support/ranks.h"
#include "support/same_plans.h"
#include "train/training_engine.h"
#include "train/training_model.h"
#include "zero/from_config.h"
#include "zero/model_spec.h"

namespace zero {
namespace {

struct PipelineCase {
  const char* type;
  int stage, tensor, pipeline;
  bool sequence;
  const char* schedule;
};

Config config_of_case(const PipelineCase& one, int ranks) {
  nlohmann::json model{{"type", one.type}, {"vocab_size", 53}, {"context_length", 8},
                       {"layers", 5},      {"width", 24},      {"heads", 4}};
  if (one.type == std::string("llama")) model["kv_heads"] = 2;
  const nlohmann::json text{{"train_micro_batch_size_per_gpu", 2},
                            {"gradient_accumulation_steps", 4},
                            {"bf16", {{"enabled", one.stage > 1}}},
                            {"zero_optimization", {{"stage", one.stage}, {"reduce_bucket_size", 700}}},
                            {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
                            {"parallel",
                             {{"tensor", one.tensor},
                              {"sequence", one.sequence},
                              {"pipeline", one.pipeline},
                              {"schedule", one.schedule}}},
                            {"model", model}};
  return resolve(parse_config(text.dump(), "small"), ranks);
}

// Tensors of a message are described ahead of them.
constexpr int64_t kHeaderNumel =
    1 + detail::Messages::kMostTensors * (6 + detail::Messages::kMostDims + detail::Messages::kMostBlocks);

void compare_case(const PipelineCase& one, const Mesh& mesh) {
  const Config config = config_of_case(one, mesh.size());
  const ModuleSpec whole = trained_spec(config);
  const int tensor_rank = mesh.group("tp").rank();
  const PipelinePlan said =
      plan_pipeline(config, whole, tensor_part(config, whole, tensor_rank), mesh.size(), 1, 0);
  const PipelineRankPlan& rank = said.ranks.at(static_cast<size_t>(mesh.group("pp").rank()));
  const auto model = training::training_model(config);
  const TensorParallel parallel = training::parallelized(*model, config, mesh);
  EngineOptions options = engine_options_of(config, data_ranks(config, mesh.size()));
  parallel.add_to(options);
  training::TrainingEngine engine(config, model, options, mesh, [](int64_t) { return 1; });
  testing::expect_same(rank.plan, engine.engine().plan());

  const Group pipeline = mesh.group("pp"), tensor = mesh.group("tp");
  using enum Operation;
  const Traffic sent = pipeline.traffic(Send);
  std::map<Operation, Traffic> before;
  for (const Operation kind : {AllReduce, AllGather, ReduceScatter}) before[kind] = tensor.traffic(kind);
  const auto tokens = at::randint(0, 53, {2, 8}, at::kLong);
  engine.run([&](int64_t) { return training::Batch{tokens, tokens}; });
  const Traffic now = pipeline.traffic(Send);
  const int64_t messages = (now.calls - sent.calls) / 2;
  EXPECT_EQ(messages, rank.messages.calls + rank.tied.calls);
  EXPECT_EQ(now.elements - sent.elements - messages * kHeaderNumel,
            rank.messages.elements + rank.tied.elements);
  EXPECT_EQ(tensor.traffic(AllGather).elements - before[AllGather].elements, rank.tensor.all_gather.elements);
  EXPECT_EQ(tensor.traffic(ReduceScatter).elements - before[ReduceScatter].elements,
            rank.tensor.reduce_scatter.elements);
  EXPECT_EQ(tensor.traffic(AllReduce).elements - before[AllReduce].elements, rank.tensor.all_reduce.elements);
}

TEST(MeshPipelinePlan, IsWhatEveryPlaceHoldsAndSends) {
  const PipelineCase cases[] = {
      {"llama", 0, 2, 2, false, "1f1b"},        {"llama", 3, 2, 2, true, "1f1b"},
      {"llama", 1, 1, 4, false, "gpipe"},       {"gpt_neox", 2, 2, 2, true, "zb-h1"},
      {"llama", 3, 1, 2, false, "interleaved"}, {"gpt2", 3, 2, 2, false, "1f1b"}};
  for (const PipelineCase& one : cases) {
    testing::RankOptions options;
    options.mesh.axes = {{"pp", one.pipeline}, {"dp", -1}, {"tp", one.tensor}};
    SCOPED_TRACE(std::string(one.type) + " stage " + std::to_string(one.stage) + " tp " +
                 std::to_string(one.tensor) + " pp " + std::to_string(one.pipeline) + " " + one.schedule);
    testing::run_ranks(
        4, [&](const Mesh& mesh) { compare_case(one, mesh); }, options);
  }
}

}  // namespace
}  // namespace zero
