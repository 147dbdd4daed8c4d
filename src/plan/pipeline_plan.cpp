#include "plan/pipeline_plan.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/glob.h"
#include "pipeline/schedules.h"
#include "pipeline/timeline.h"
#include "plan/config_options.h"
#include "plan/model_parts.h"
#include "plan/stage_balance.h"
#include "plan/state_bytes.h"
#include "zero/error.h"
#include "zero/model_shape.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

using Patterns = std::vector<std::string>;

void keep(ModuleSpec& module, const Patterns& patterns) {
  std::erase_if(module.parameters, [&](const ParameterSpec& parameter) {
    return std::none_of(patterns.begin(), patterns.end(),
                        [&](const std::string& pattern) { return glob_matches(pattern, parameter.name); });
  });
  for (ModuleSpec& child : module.children) keep(child, patterns);
}

// Ranks along "dp" are neighbours: as many share memory as a host has of them.
RankPlaces dp_places_of(const Config& config, int ranks, int hosts, int cuda_devices) {
  const bool on_cpu = !runs_on_cuda(config.parallel, cuda_devices);
  const bool by_memory = on_cpu && config.parallel.backend != ParallelConfig::Backend::Gloo;
  const int dp_ranks = ranks / config.parallel.pipeline;
  return {.ranks = dp_ranks,
          .together = by_memory ? std::gcd(dp_ranks, ranks / hosts) : 1,
          .on_cpu = on_cpu,
          .communication = config.parallel.communication};
}

// A forward of a block, per token: two operations an element of its matrices, and four an element of scores.
// Backward takes the former twice, once for inputs and once for weights, and the latter twice for inputs.
pipeline::StageCosts costs_of(const Config& config, const ModuleSpec& model) {
  Config by_cost = config;
  by_cost.parallel.balance = ParallelConfig::Balance::Cost;
  const PartWeights weights = weights_of(by_cost, model);
  const double forward = std::accumulate(weights.blocks.begin(), weights.blocks.end(), weights.last);
  const double scores = 4.0 * static_cast<double>(config.data.sequence_length * config.model.width) *
                        static_cast<double>(weights.blocks.size());
  return {.forward = forward, .backward_input = forward + scores, .backward_weight = forward - scores};
}

std::vector<double> operations_by_stage(const Config& config, const ModuleSpec& model,
                                        const std::vector<int64_t>& blocks) {
  Config by_cost = config;
  by_cost.parallel.balance = ParallelConfig::Balance::Cost;
  const PartWeights weights = weights_of(by_cost, model);
  std::vector<double> operations;
  auto at = weights.blocks.begin();
  for (const int64_t count : blocks) {
    operations.push_back(std::accumulate(at, at + count, 0.0));
    at += count;
  }
  operations.back() += weights.last;
  return operations;
}

ActivationBytes activations_of(const Config& config, Dtype dtype, int64_t blocks, double kept,
                               bool has_head) {
  ActivationBytes bytes = activation_bytes(shape_of(config), config.train_micro_batch_size,
                                           config.data.sequence_length, dtype, config.recompute);
  const double share = static_cast<double>(blocks) / static_cast<double>(config.model.layers);
  bytes.kept = static_cast<int64_t>(static_cast<double>(bytes.kept) * share * kept);
  if (!has_head) bytes.loss = 0;
  return bytes;
}

}  // namespace

PipelinePlan plan_pipeline(const Config& config, const ModuleSpec& model, int ranks, int hosts,
                           int cuda_devices) {
  const ParallelConfig& parallel = config.parallel;
  require(hosts >= 1 && ranks % hosts == 0, ErrorKind::Config, "--hosts",
          "expected a divisor of the " + std::to_string(ranks) + " ranks, got " + std::to_string(hosts));
  const int stages = stages_of_pipeline(parallel);
  const std::vector<int64_t> blocks = stage_blocks_of(config, model, stages);
  const std::vector<Patterns> patterns = stage_patterns(model, blocks);
  const std::vector<double> operations = operations_by_stage(config, model, blocks);
  const pipeline::StageCosts costs = costs_of(config, model);
  const pipeline::Table table =
      pipeline::make_schedule(pipeline::kind_from(parallel.schedule), parallel.pipeline,
                              static_cast<int>(config.gradient_accumulation_steps), parallel.chunks, {});
  const pipeline::Timeline timeline = pipeline::time_of(table, costs);

  PipelinePlan result{.model = config.model.type + ", " + std::to_string(config.model.layers) +
                               " layers, width " + std::to_string(config.model.width),
                      .schedule = parallel.schedule,
                      .pipeline_ranks = parallel.pipeline,
                      .dp_ranks = ranks / parallel.pipeline,
                      .micro_batches = static_cast<int>(config.gradient_accumulation_steps),
                      .stage = config.zero.stage,
                      .bubble = timeline.bubble,
                      .bubble_of_these = 0,
                      .ranks = {}};
  EngineOptions options = options_from_config(config, result.dp_ranks);
  options.reduce_once = true;
  const RankPlaces places = dp_places_of(config, ranks, hosts, cuda_devices);
  const double all = std::accumulate(operations.begin(), operations.end(), 0.0);
  double heaviest = 0;
  for (int rank = 0; rank < parallel.pipeline; ++rank) {
    PipelineRankPlan one;
    Patterns held;
    for (int chunk = 0; chunk < table.shape.chunks; ++chunk) {
      const int stage = table.shape.stage_of(rank, chunk);
      one.stages.push_back(stage);
      one.blocks += blocks[stage];
      one.share += operations[stage] * parallel.pipeline / all;
      held.insert(held.end(), patterns[stage].begin(), patterns[stage].end());
    }
    ModuleSpec part = model;
    keep(part, held);
    one.plan = make_plan(part, options, places, bytes_of_rule(config.optimizer.rule));
    for (const UnitLayout& unit : one.plan.units) one.parameters += unit.numel;
    one.kept_micro_batches = timeline.peak_kept[rank];
    one.activations = activations_of(config, *options.dtype, one.blocks, one.kept_micro_batches,
                                     table.shape.rank_of(stages - 1) == rank);
    heaviest = std::max(heaviest, one.share);
    result.ranks.push_back(std::move(one));
  }
  result.bubble_of_these = 1 - (1 - result.bubble) / std::max(1.0, heaviest);
  return result;
}

std::string to_text(const PipelinePlan& plan) {
  char line[256];
  std::string text = plan.model + "\n" + std::to_string(plan.pipeline_ranks) + " ranks along the pipeline, " +
                     std::to_string(plan.dp_ranks) + " along dp, ZeRO stage " + std::to_string(plan.stage) +
                     "; " + plan.schedule + ", " + std::to_string(plan.micro_batches) + " micro-batches\n\n";
  std::snprintf(line, sizeof line, "%4s  %-8s %6s %12s %9s %12s %6s %12s %12s\n", "rank", "stages", "blocks",
                "parameters", "work", "states", "kept", "activations", "at the peak");
  text += line;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const PipelineRankPlan& one = plan.ranks[rank];
    std::string stages;
    for (const int stage : one.stages) stages += (stages.empty() ? "" : ",") + std::to_string(stage);
    const RankPlan& bytes = one.plan.rank;
    const int64_t states =
        bytes.parameter_bytes + bytes.gradient_bytes + bytes.master_bytes + bytes.optimizer_bytes;
    std::snprintf(line, sizeof line, "%4zu  %-8s %6lld %12s %8.1f%% %12s %6.1f %12s %12s\n", rank,
                  stages.c_str(), static_cast<long long>(one.blocks), human_count(one.parameters).c_str(),
                  100 * one.share, human_bytes(states).c_str(), one.kept_micro_batches,
                  human_bytes(one.activations.kept + one.activations.loss).c_str(),
                  human_bytes(peak_bytes(one.plan, one.activations)).c_str());
    text += line;
  }
  std::snprintf(line, sizeof line,
                "\nRanks wait %.1f%% of a step with equal stages, %.1f%% with these (work: of the mean).\n",
                100 * plan.bubble, 100 * plan.bubble_of_these);
  return text + line;
}

std::string to_json(const PipelinePlan& plan) {
  using Json = nlohmann::ordered_json;
  Json ranks = Json::array();
  for (const PipelineRankPlan& one : plan.ranks)
    ranks.push_back({{"stages", one.stages},
                     {"blocks", one.blocks},
                     {"parameters", one.parameters},
                     {"parameter_bytes_per_rank", one.plan.rank.parameter_bytes},
                     {"gradient_bytes_per_rank", one.plan.rank.gradient_bytes},
                     {"master_bytes_per_rank", one.plan.rank.master_bytes},
                     {"moment_bytes_per_rank", one.plan.rank.optimizer_bytes},
                     {"kept_micro_batches", one.kept_micro_batches},
                     {"activation_bytes", one.activations.kept},
                     {"loss_bytes", one.activations.loss},
                     {"peak_bytes_per_rank", peak_bytes(one.plan, one.activations)},
                     {"work_of_mean", one.share}});
  const Json json = {{"model", plan.model},
                     {"schedule", plan.schedule},
                     {"pipeline_ranks", plan.pipeline_ranks},
                     {"dp_ranks", plan.dp_ranks},
                     {"micro_batches", plan.micro_batches},
                     {"stage", plan.stage},
                     {"bubble", plan.bubble},
                     {"bubble_of_these_stages", plan.bubble_of_these},
                     {"ranks", ranks}};
  return json.dump(2) + "\n";
}

}  // namespace zero
