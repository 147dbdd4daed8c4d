// What `zero plan` says of ranks that share layers, and what they hold, keep and send: states field by field,
// traffic to the element, activations of the formulas to 5 %.
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>

#include "sharding/sharded_model.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/same_plans.h"
#include "zero/axis_traffic.h"
#include "zero/config.h"
#include "zero/cpu_allocator.h"
#include "zero/cpu_operators.h"
#include "zero/from_config.h"
#include "zero/language_model.h"
#include "zero/language_model_plan.h"
#include "zero/lazy.h"
#include "zero/model_shape.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"
#include "zero/tensor_parallel.h"

namespace zero {
namespace {

using nlohmann::json;

testing::RankOptions sharing(int ranks) {
  testing::RankOptions options;
  options.mesh.axes = {{"pp", 1}, {"dp", -1}, {"tp", ranks}};
  return options;
}

// Odd sizes: rows of the vocabulary and of the MLP and heads that ranks cannot share evenly, heads of keys
// that they outnumber.
const json kModels[] = {
    {{"type", "gpt2"}, {"vocab_size", 53}, {"context_length", 8}, {"layers", 2}, {"width", 24}, {"heads", 4}},
    {{"type", "llama"},
     {"vocab_size", 53},
     {"context_length", 8},
     {"layers", 2},
     {"width", 20},
     {"heads", 4},
     {"kv_heads", 1},
     {"head_width", 6},
     {"mlp_width", 27}},
    {{"type", "llama"},
     {"vocab_size", 50},
     {"context_length", 8},
     {"layers", 3},
     {"width", 16},
     {"heads", 4},
     {"kv_heads", 2},
     {"mlp_width", 20},
     {"tied_head", true}},
    {{"type", "gpt_neox"},
     {"vocab_size", 53},
     {"context_length", 8},
     {"layers", 2},
     {"width", 24},
     {"heads", 4},
     {"mlp_width", 45},
     {"rotary_fraction", 1}},
    {{"type", "gpt2"},
     {"vocab_size", 53},
     {"context_length", 8},
     {"layers", 2},
     {"width", 30},
     {"heads", 5}}};

Config config_of(const json& model, int ranks, int tensor, int stage, bool vocabulary = true) {
  json text{{"train_micro_batch_size_per_gpu", 2},
            {"gradient_accumulation_steps", stage % 2 + 1},
            {"bf16", {{"enabled", stage > 1}}},
            {"zero_optimization", {{"stage", stage}, {"reduce_bucket_size", 700}}},
            {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
            {"parallel", {{"tensor", tensor}, {"vocabulary", vocabulary}}},
            {"model", model}};
  return resolve(parse_config(text.dump(), "small"), ranks);
}

TensorParallel cut(LanguageModel& model, const Config& config, const Mesh& mesh) {
  const ParallelConfig& parallel = config.parallel;
  return parallelize(model,
                     tensor_parallel_plan(model, shape_of(config), parallel.tensor,
                                          {.cuts_vocabulary = parallel.vocabulary}),
                     mesh, {.sequence = parallel.sequence});
}

void compare_states(const Config& config, int ranks, const Mesh& mesh) {
  const int rank = mesh.group("tp").rank();
  const ModuleSpec whole = trained_spec(config);
  const ConfigPlan said = plan_from_config(config, tensor_part(config, whole, rank), ranks);
  EXPECT_EQ(said.parameters, numel_of(whole));
  const auto model = lazily([&] { return make_language_model(shape_of(config)); });
  freeze(*model, config);
  const TensorParallel parallel = cut(*model, config, mesh);
  EngineOptions options = engine_options_of(config, data_ranks(config, ranks));
  parallel.add_to(options);
  detail::ShardedModel held(detail::parameters_of(*model), optimizer_of(config), options, mesh);
  testing::expect_same(said.stages[static_cast<size_t>(config.zero.stage)], held.plan);
  int64_t elements = 0;
  for (const at::Tensor& parameter : model->parameters()) elements += parameter.numel();
  EXPECT_EQ(said.parameters_of_rank, elements);
}

void compare_all_states(int ranks, int tensor) {
  testing::run_ranks(
      ranks,
      [&](const Mesh& mesh) {
        for (const json& model : kModels)
          for (int stage = 0; stage < kStages; ++stage)
            for (const bool vocabulary : {true, false}) {
              SCOPED_TRACE(model.dump() + " stage " + std::to_string(stage));
              compare_states(config_of(model, ranks, tensor, stage, vocabulary), ranks, mesh);
            }
      },
      sharing(tensor));
}

TEST(MeshPlan, IsWhatTwoRanksThatShareLayersHold) { compare_all_states(2, 2); }
TEST(MeshPlan, IsWhatFourRanksThatShareLayersInPairsHold) { compare_all_states(4, 2); }
TEST(MeshPlan, IsWhatFourRanksThatShareLayersHold) { compare_all_states(4, 4); }

Traffic difference(const Traffic& after, const Traffic& before) {
  return {after.calls - before.calls, after.elements - before.elements, after.bytes - before.bytes};
}

void expect_moved(const Moved& said, const Traffic& sent) {
  EXPECT_EQ(said.calls, sent.calls);
  EXPECT_EQ(said.elements, sent.elements);
  EXPECT_EQ(said.bytes, sent.bytes);
}

// One forward and backward.
void compare_traffic(const json& shape, const Mesh& mesh, bool sequence, Dtype dtype, bool vocabulary) {
  Config config = config_of(shape, mesh.size(), mesh.group("tp").size(), 0, vocabulary);
  config.parallel.sequence = sequence;
  constexpr int64_t kRows = 2, kTokens = 7;
  torch::manual_seed(1);
  const auto model = make_language_model(shape_of(config));
  if (dtype == Dtype::bf16) model->to(torch::kBFloat16);
  const TensorParallel parallel = cut(*model, config, mesh);
  const Group tp = mesh.group("tp");
  const auto tokens = torch::arange(kRows * kTokens).view({kRows, kTokens});
  using enum Operation;
  std::map<Operation, Traffic> before;
  for (const Operation kind : {AllReduce, AllGather, ReduceScatter}) before[kind] = tp.traffic(kind);
  parallel.forward([&] { return model->loss(tokens, tokens); }).backward();
  const TensorTraffic said = tensor_traffic(
      shape_of(config), kRows, kTokens, dtype,
      {.ranks = tp.size(), .sequence = sequence, .vocabulary = vocabulary}, {.blocks = config.model.layers});
  SCOPED_TRACE(shape.dump() + (sequence ? " sequence" : "") + (vocabulary ? "" : " whole vocabulary"));
  {
    SCOPED_TRACE("all-reduces");
    expect_moved(said.all_reduce, difference(tp.traffic(AllReduce), before[AllReduce]));
  }
  {
    SCOPED_TRACE("gathers");
    expect_moved(said.all_gather, difference(tp.traffic(AllGather), before[AllGather]));
  }
  SCOPED_TRACE("scatters");
  expect_moved(said.reduce_scatter, difference(tp.traffic(ReduceScatter), before[ReduceScatter]));
}

TEST(MeshPlan, CountsWhatRanksThatShareLayersSend) {
  for (const int ranks : {2, 4})
    testing::run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          for (const json& model : kModels)
            for (const bool sequence : {false, true})
              for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
                compare_traffic(model, mesh, sequence, dtype, /*vocabulary=*/true);
          for (const json& model : kModels)
            compare_traffic(model, mesh, /*sequence=*/false, Dtype::f32, /*vocabulary=*/false);
        },
        sharing(ranks));
}

constexpr int64_t kBatch = 2, kSequence = 128, kHeadWidth = 32, kVocabulary = 512;

json large(const char* type, int64_t layers, double dropout, int64_t heads, int64_t kv_heads) {
  json model{{"type", type},        {"vocab_size", kVocabulary},   {"context_length", kSequence},
             {"layers", layers},    {"width", heads * kHeadWidth}, {"heads", heads},
             {"rotary_fraction", 1}};
  if (type == std::string("gpt2")) model["dropout"] = dropout;
  if (type == std::string("llama")) model["mlp_width"] = 704;
  if (type == std::string("llama")) model["kv_heads"] = kv_heads;
  if (type != std::string("gpt_neox")) model.erase("rotary_fraction");
  return model;
}

// What a forward leaves for backward.
int64_t measured(const Config& config, const Mesh& mesh, Dtype dtype) {
  const auto model = make_language_model(shape_of(config));
  if (dtype == Dtype::bf16) model->to(torch::kBFloat16);
  const TensorParallel parallel = cut(*model, config, mesh);
  const CpuOperators fast;
  const auto tokens = torch::randint(kVocabulary, {kBatch, kSequence}, torch::kLong);
  const int64_t before = cpu_allocator_stats().used_bytes;
  const torch::Tensor loss = parallel.forward([&] { return model->loss(tokens, tokens); });
  return cpu_allocator_stats().used_bytes - before;
}

// Of three layers, which are all that the two models differ in.
void compare_activations(const char* type, const Mesh& mesh, bool sequence, Dtype dtype, double dropout,
                         int64_t heads = 8, int64_t kv_heads = 8) {
  constexpr int64_t kFew = 2, kMany = 5;
  const int ranks = mesh.group("tp").size();
  const auto of = [&](int64_t layers) {
    Config config = config_of(large(type, layers, dropout, heads, kv_heads), ranks, ranks, 0);
    config.parallel.sequence = sequence;
    return config;
  };
  const auto planned = [&](int64_t layers) {
    return activation_bytes(shape_of(of(layers)), kBatch, kSequence, dtype, {},
                            {.ranks = ranks, .sequence = sequence})
        .kept;
  };
  const auto kept = static_cast<double>(measured(of(kMany), mesh, dtype) - measured(of(kFew), mesh, dtype));
  // The plan is of the rank that has most, the last one.
  if (heads % ranks != 0 && mesh.group("tp").rank() != ranks - 1) return;
  EXPECT_NEAR(kept / static_cast<double>(planned(kMany) - planned(kFew)), 1, 0.05)
      << type << " " << heads << " heads" << (sequence ? " sequence " : " ") << ranks << " ranks "
      << to_string(dtype) << " dropout " << dropout;
}

TEST(MeshPlan, CountsWhatRanksThatShareLayersKeep) {
  for (const int ranks : {2, 4})
    testing::run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          use_training_allocator();
          for (const char* type : {"gpt2", "llama", "gpt_neox"})
            for (const bool sequence : {false, true})
              for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
                compare_activations(type, mesh, sequence, dtype, 0);
          for (const bool sequence : {false, true})
            for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
              compare_activations("gpt2", mesh, sequence, dtype, 0.1);
          for (const bool sequence : {false, true})
            compare_activations("llama", mesh, sequence, Dtype::f32, 0, /*heads=*/8, /*kv_heads=*/1);
        },
        sharing(ranks));
}

TEST(MeshPlan, CountsTheMostHeadsThatARankKeeps) {
  for (const int ranks : {3, 4})
    testing::run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          use_training_allocator();
          constexpr int64_t kHeads = 5;  // 1, 2 and 2 of them, or 1, 1, 1 and 2
          for (const char* type : {"gpt2", "llama", "gpt_neox"})
            for (const bool sequence : {false, true})
              compare_activations(type, mesh, sequence, Dtype::f32, 0, kHeads, kHeads);
          compare_activations("gpt2", mesh, /*sequence=*/false, Dtype::f32, 0.1, kHeads, kHeads);
          // Heads of keys with their five of queries each, and fewer of keys than ranks.
          compare_activations("llama", mesh, /*sequence=*/false, Dtype::f32, 0, 5 * kHeads, kHeads);
          compare_activations("llama", mesh, /*sequence=*/false, Dtype::f32, 0, kHeads, 1);
        },
        sharing(ranks));
}

TEST(MeshPlan, TellsOfEveryAxis) {
  const Config config = config_of(kModels[0], 4, 2, 3);
  const ConfigPlan plan = plan_from_config(config, tensor_part(config, trained_spec(config), 1), 4);
  EXPECT_NE(to_text(plan).find("4 ranks, 2 along dp, 2 along tp"), std::string::npos) << to_text(plan);
  const json told = json::parse(to_json(plan));
  EXPECT_EQ(told["ranks"], 4);
  EXPECT_EQ(told["dp_ranks"], 2);
  EXPECT_EQ(told["tensor_ranks"], 2);
  EXPECT_EQ(told["tp_per_step"]["all_reduce"]["elements"], plan.tensor_traffic.all_reduce.elements);
  EXPECT_GT(plan.tensor_traffic.all_reduce.elements, 0);
  EXPECT_LT(plan.parameters_of_rank, plan.parameters);
  // Groups of two neighbours share layers, so that ranks along dp are on one host where two groups are.
  EXPECT_EQ(plan.stages[3].placements.parameter, Placement::Common);
  EXPECT_EQ(plan_from_config(config, tensor_part(config, trained_spec(config), 1), 4, {}, /*hosts=*/2)
                .stages[3]
                .placements.parameter,
            Placement::Shard);
}

TEST(MeshPlan, RefusesHeadsThatRanksCannotShare) {
  const Config config = config_of(kModels[0], 5, 5, 0);
  EXPECT_ERROR(tensor_part(config, trained_spec(config), 0), Config,
               "parallel.tensor: tensor parallelism: 5 ranks cannot share 4 heads; at most 4 ranks could");
}

}  // namespace
}  // namespace zero
