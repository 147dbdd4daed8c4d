#include "plan/pipeline_plan.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "pipeline/schedules.h"
#include "pipeline/timeline.h"
#include "plan/config_options.h"
#include "plan/fp32_patterns.h"
#include "plan/mesh_places.h"
#include "plan/model_parts.h"
#include "plan/moved_json.h"
#include "plan/stage_activations.h"
#include "plan/stage_balance.h"
#include "plan/state_bytes.h"
#include "zero/error.h"
#include "zero/model_shape.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

using Patterns = std::vector<std::string>;

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

ActivationBytes activations_of(const Config& config, Dtype dtype, int64_t layers,
                               const RecomputePolicy& recompute) {
  Config some = config;
  some.model.layers = layers;
  return activation_bytes(shape_of(some), config.train_micro_batch_size, config.data.sequence_length, dtype,
                          recompute, layer_share_of(config));
}

// Of every stage: layers whole, or of recomputed ones the input, and the stage's result.
StageActivations stage_activations(const Config& config, Dtype dtype, const std::vector<int64_t>& blocks) {
  const auto kept = [&](int64_t layers, int64_t every) {
    return static_cast<double>(activations_of(config, dtype, layers, {.every = every}).kept);
  };
  const double whole = kept(2, kRecomputeNone) - kept(1, kRecomputeNone);
  const double input = kept(2, kRecomputeAll) - kept(1, kRecomputeAll);
  StageActivations bytes{.kept = {}, .message = input, .after_loss = input};
  int64_t block = 0;
  for (const int64_t count : blocks) {
    bytes.kept.push_back(input);
    for (const int64_t end = block + count; block < end; ++block)
      bytes.kept.back() += config.recompute.recomputes(block) ? input : whole;
  }
  return bytes;
}

// Where what is kept follows from the table alone; of others the mean block.
bool follows_table(const Config& config, const pipeline::Table& table) {
  const RecomputePolicy& recompute = config.recompute;
  const bool whole_backwards =
      std::all_of(table.rows[0].begin(), table.rows[0].end(), [](const pipeline::Action& action) {
        return action.pass == pipeline::Pass::Forward || action.pass == pipeline::Pass::Backward;
      });
  return whole_backwards && table.shape.ranks > 1 && recompute.every != kRecomputeAuto &&
         recompute.tier == ActivationTier::Device;
}

// `most`: by rank, or empty where it does not follow from the table.
ActivationBytes activations_of(const Config& config, Dtype dtype, int rank, const std::vector<double>& most,
                               const PipelineRankPlan& one) {
  ActivationBytes bytes = activations_of(config, dtype, config.model.layers, config.recompute);
  const double share = static_cast<double>(one.blocks) / static_cast<double>(config.model.layers);
  bytes.kept = static_cast<int64_t>(
      most.empty() ? static_cast<double>(bytes.kept) * share * one.kept_micro_batches : most[rank]);
  if (!one.has_last) bytes.loss = 0;
  return bytes;
}

// Messages to stages on other ranks: activations onwards, gradients back.
int64_t neighbours_of(const pipeline::Shape& shape, int rank) {
  int64_t neighbours = 0;
  for (int chunk = 0; chunk < shape.chunks; ++chunk)
    for (const int other : {shape.stage_of(rank, chunk) - 1, shape.stage_of(rank, chunk) + 1})
      neighbours += other >= 0 && other < shape.stages() && shape.rank_of(other) != rank ? 1 : 0;
  return neighbours;
}

// What both the first and the last stage hold.
int64_t tied_numel(const ModuleSpec& part) {
  const ModelParts parts = parts_of_model(part);
  int64_t numel = 0;
  for (const ParameterSpec* first : parts.first)
    for (const ParameterSpec* last : parts.last) numel += first->name == last->name ? first->numel() : 0;
  return numel;
}

void add_traffic(const Config& config, Dtype dtype, const pipeline::Shape& table, const ModuleSpec& part,
                 int rank, PipelineRankPlan& one) {
  const ModelShape shape = shape_of(config);
  const LayerShare share = layer_share_of(config);
  const int64_t batch = config.train_micro_batch_size, sequence = config.data.sequence_length;
  const int64_t micro_batches = config.gradient_accumulation_steps;
  const HeldParts held{.blocks = one.blocks, .has_first = one.has_first, .has_last = one.has_last};
  one.tensor = times(tensor_traffic(shape, batch, sequence, dtype, share, held), micro_batches);
  one.messages =
      pipeline_messages(shape, batch, sequence, dtype, share, neighbours_of(table, rank), micro_batches);
  if (held.has_last && !held.has_first)
    if (const int64_t numel = tied_numel(part); numel > 0)
      one.tied.add(micro_batches, numel, itemsize(dtype));
}

}  // namespace

PipelinePlan plan_pipeline(const Config& config, const ModuleSpec& model, const ModuleSpec& part, int ranks,
                           int hosts, int cuda_devices) {
  const ParallelConfig& parallel = config.parallel;
  const RankPlaces places = dp_places_of(config, ranks, hosts, cuda_devices);
  const int stages = stages_of_pipeline(parallel);
  const std::vector<int64_t> blocks = stage_blocks_of(config, model, stages);
  const std::vector<Patterns> patterns = stage_patterns(model, blocks);
  const std::vector<double> operations = operations_by_stage(config, model, blocks);
  const pipeline::StageCosts costs = costs_of(config, model);
  const pipeline::Kind kind =
      parallel.pipeline > 1 ? pipeline::kind_from(parallel.schedule) : pipeline::Kind::OneFOneB;
  const pipeline::Table table = pipeline::make_schedule(
      kind, parallel.pipeline, static_cast<int>(config.gradient_accumulation_steps), parallel.chunks, {});
  const pipeline::Timeline timeline = pipeline::time_of(table, costs);

  PipelinePlan result{.model = config.model.type + ", " + std::to_string(config.model.layers) +
                               " layers, width " + std::to_string(config.model.width),
                      .schedule = parallel.schedule,
                      .pipeline_ranks = parallel.pipeline,
                      .dp_ranks = places.ranks,
                      .micro_batches = static_cast<int>(config.gradient_accumulation_steps),
                      .stage = config.zero.stage,
                      .layers = layer_share_of(config),
                      .bubble = timeline.bubble,
                      .bubble_of_these = 0,
                      .ranks = {}};
  EngineOptions options = options_from_config(config, result.dp_ranks);
  options.reduce_once = parallel.pipeline > 1;
  const double all = std::accumulate(operations.begin(), operations.end(), 0.0);
  std::vector<double> most;
  if (follows_table(config, table))
    most = most_kept(table, stage_activations(config, *options.dtype, blocks));
  double heaviest = 0;
  for (int rank = 0; rank < parallel.pipeline; ++rank) {
    PipelineRankPlan one;
    Patterns held;
    for (int chunk = 0; chunk < table.shape.chunks; ++chunk) {
      const int stage = table.shape.stage_of(rank, chunk);
      one.stages.push_back(stage);
      one.blocks += blocks[stage];
      one.share += operations[stage] * parallel.pipeline / all;
      one.product_flops += operations[stage];
      held.insert(held.end(), patterns[stage].begin(), patterns[stage].end());
    }
    one.score_flops = 4 * static_cast<double>(one.blocks * config.data.sequence_length * config.model.width);
    one.product_flops -= one.score_flops;
    ModuleSpec own = part;
    if (stages > 1) keep_parameters(own, held);
    EngineOptions its_options = options;
    its_options.fp32_parameters = fp32_patterns_of_part(options.fp32_parameters, part, own);
    one.plan = make_plan(own, its_options, places, bytes_of_rule(config.optimizer.rule));
    for (const UnitLayout& unit : one.plan.units) one.parameters += unit.numel;
    one.kept_micro_batches = timeline.peak_kept[rank];
    one.has_first = table.shape.rank_of(0) == rank;
    one.has_last = table.shape.rank_of(stages - 1) == rank;
    one.activations = activations_of(config, *options.dtype, rank, most, one);
    add_traffic(config, *options.dtype, table.shape, part, rank, one);
    heaviest = std::max(heaviest, one.share);
    result.ranks.push_back(std::move(one));
  }
  result.bubble_of_these = 1 - (1 - result.bubble) / std::max(1.0, heaviest);
  return result;
}

namespace {

std::string along_tp(const LayerShare& share) {
  if (share.ranks == 1) return "";
  return ", " + std::to_string(share.ranks) + " along tp" + (share.sequence ? " (and the sequence)" : "");
}

std::string bytes_sent(int64_t bytes) { return bytes == 0 ? "-" : human_bytes(bytes); }

int64_t dp_bytes(const Plan& plan, int64_t elements_of_parameters, int64_t elements_of_gradients) {
  const Dtype parameters = plan.units.empty() ? Dtype::f32 : plan.units.front().dtype;
  return elements_of_parameters * itemsize(parameters) +
         elements_of_gradients * itemsize(plan.communication_dtype);
}

int64_t dp_bytes(const Plan& plan) {
  const RankPlan& rank = plan.rank;
  return dp_bytes(plan, rank.all_gather_elements, rank.reduce_scatter_elements + rank.all_reduce_elements);
}

std::string axes_table(const PipelinePlan& plan) {
  char line[256];
  std::snprintf(line, sizeof line, "\n%4s  %18s %18s %18s %22s\n", "rank", "sent a step: dp", "tp", "pp",
                "of a tied embedding");
  std::string text = line;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const PipelineRankPlan& one = plan.ranks[rank];
    std::snprintf(line, sizeof line, "%4zu  %18s %18s %18s %22s\n", rank,
                  bytes_sent(dp_bytes(one.plan)).c_str(), bytes_sent(one.tensor.bytes()).c_str(),
                  bytes_sent(one.messages.bytes).c_str(), bytes_sent(one.tied.bytes).c_str());
    text += line;
  }
  return text;
}

}  // namespace

std::string to_text(const PipelinePlan& plan) {
  char line[256];
  std::string text = plan.model + "\n" + std::to_string(plan.pipeline_ranks) + " ranks along the pipeline, " +
                     std::to_string(plan.dp_ranks) + " along dp" + along_tp(plan.layers) + ", ZeRO stage " +
                     std::to_string(plan.stage) + "; " + plan.schedule + ", " +
                     std::to_string(plan.micro_batches) + " micro-batches\n\n";
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
  text += axes_table(plan);
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
                     {"dp_bytes_per_step", dp_bytes(one.plan)},
                     {"tp_per_step", moved_json(one.tensor)},
                     {"pp_messages_per_step", one.messages.calls},
                     {"pp_bytes_per_step", one.messages.bytes},
                     {"tied_bytes_per_step", one.tied.bytes},
                     {"work_of_mean", one.share}});
  const Json json = {{"model", plan.model},
                     {"schedule", plan.schedule},
                     {"pipeline_ranks", plan.pipeline_ranks},
                     {"dp_ranks", plan.dp_ranks},
                     {"tensor_ranks", plan.layers.ranks},
                     {"sequence", plan.layers.sequence},
                     {"micro_batches", plan.micro_batches},
                     {"stage", plan.stage},
                     {"bubble", plan.bubble},
                     {"bubble_of_these_stages", plan.bubble_of_these},
                     {"ranks", ranks}};
  return json.dump(2) + "\n";
}

}  // namespace zero
