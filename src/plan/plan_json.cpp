// The plan as JSON. Every figure is an integer, exact beyond 2^53.
#include <nlohmann/json.hpp>

#include "plan/moved_json.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

using Json = nlohmann::ordered_json;

Json stage_json(const CountStage& row) {
  Json json{{"stage", row.stage},
            {"parameter_bytes_per_rank", row.parameter_bytes},
            {"gradient_bytes_per_rank", row.gradient_bytes},
            {"optimizer_bytes_per_rank", row.optimizer_bytes},
            {"state_bytes_per_rank", row.state_bytes()},
            {"engine_gradient_bytes_per_rank", row.engine_gradient_bytes},
            {"engine_optimizer_bytes_per_rank", row.engine_optimizer_bytes},
            {"engine_state_bytes_per_rank", row.engine_state_bytes()},
            {"traffic_elements_per_step", row.traffic_elements}};
  if (row.largest_parameters) json["largest_parameters"] = *row.largest_parameters;
  if (row.engine_largest_parameters) json["engine_largest_parameters"] = *row.engine_largest_parameters;
  return json;
}

Json tiers_json(const RankPlan& rank) {
  Json json = Json::object();
  for (const Tier tier : kTiers)
    json[std::string(to_string(tier))] = rank.tier_bytes[static_cast<size_t>(tier)];
  return json;
}

Json stage_json(const ConfigPlan& plan, size_t stage) {
  const RankPlan& rank = plan.stages[stage].rank;
  return {{"stage", rank.stage},
          {"chosen", static_cast<int>(stage) == plan.chosen_stage},
          {"parameter_bytes_per_rank", rank.parameter_bytes},
          {"gradient_bytes_per_rank", rank.gradient_bytes},
          {"master_bytes_per_rank", rank.master_bytes},
          {"optimizer_bytes_per_rank", rank.master_bytes + rank.optimizer_bytes},
          {"state_bytes_per_rank", rank.state_bytes()},
          {"state_bytes_per_rank_by_tier", tiers_json(rank)},
          {"ring_bytes_per_rank", rank.ring_bytes},
          {"staging_bytes_per_rank", rank.staging_bytes},
          {"ahead_bytes_per_rank", rank.ahead_bytes},
          {"file_bytes_per_rank", rank.file_bytes},
          {"disk_bytes_read_per_step", rank.step_read_bytes},
          {"disk_bytes_written_per_step", rank.step_written_bytes},
          {"host_bytes_per_rank", rank.host_bytes},
          {"bytes_to_device_per_step", rank.step_up_bytes},
          {"bytes_from_device_per_step", rank.step_down_bytes},
          {"passing_sum_bytes_per_rank", rank.passing_sum_bytes},
          {"gather_window_bytes_per_rank", rank.gather_window_bytes},
          {"bucket_bytes_per_rank", rank.bucket_bytes},
          {"largest_gradient_bytes_per_rank", rank.largest_gradient_bytes},
          {"activation_bytes_per_rank", plan.activations.kept},
          {"loss_bytes_per_rank", plan.activations.loss},
          {"save_copy_bytes_per_rank", plan.save_copy_bytes[stage]},
          {"total_bytes_per_rank", plan.total_bytes(stage)},
          {"resident_bytes_per_rank", plan.resident_bytes(stage)},
          {"common_parameters", plan.stages[stage].placements.parameter == Placement::Common},
          {"all_gather_elements_per_step", rank.all_gather_elements},
          {"reduce_scatter_elements_per_step", rank.reduce_scatter_elements},
          {"all_reduce_elements_per_step", rank.all_reduce_elements},
          {"traffic_elements_per_step", rank.traffic_elements()},
          {"padding_elements_per_step", rank.padding_elements}};
}

Json placement_json(const ConfigPlan& plan) {
  const TierPlan& tiers = *plan.tiers;
  Json units = Json::array();
  for (const UnitLayout& unit : tiers.plan.units) {
    const auto of = [&](Tier tier) { return std::string(to_string(tier)); };
    units.push_back({{"name", unit.name},
                     {"parameter", of(unit.tiers.parameter)},
                     {"gradient", of(unit.tiers.gradient)},
                     {"master", of(unit.tiers.master)},
                     {"optimizer", of(unit.tiers.optimizer)}});
  }
  return {{"explained", tiers.explained},
          {"peak_bytes_per_rank", tiers.peak_bytes},
          {"host_bytes_per_rank", tiers.host_bytes},
          {"file_bytes_per_rank", tiers.disk_bytes},
          {"state_bytes_per_rank_by_tier", tiers_json(tiers.plan.rank)},
          {"disk_bytes_read_per_step", tiers.traffic.disk_read_bytes},
          {"disk_bytes_written_per_step", tiers.traffic.disk_written_bytes},
          {"host_bytes_moved_per_step", tiers.traffic.host_bytes},
          {"disk_bytes_written_in_1000_steps_all_ranks",
           tiers.traffic.disk_written_bytes * 1000 * tiers.plan.ranks},
          {"seconds_per_step", tiers.seconds},
          {"disk_read_bytes_per_s", plan.machine.rates.disk_read},
          {"disk_write_bytes_per_s", plan.machine.rates.disk_write},
          {"budget_bytes", tiers.plan.budget_bytes},
          {"share_parameters", tiers.share_parameters},
          {"units", units}};
}

Json units_json(const Plan& plan) {
  Json units = Json::array();
  for (const UnitLayout& unit : plan.units)
    units.push_back({{"name", unit.name},
                     {"dtype", std::string(to_string(unit.dtype))},
                     {"trainable", unit.trainable},
                     {"parameters", unit.parameters.size()},
                     {"numel", unit.numel},
                     {"padded_numel", unit.padded_numel},
                     {"shard_numel", unit.shard_numel},
                     {"slab_bytes", unit.slab_bytes()}});
  return units;
}

}  // namespace

std::string to_json(const CountPlan& plan) {
  const CountOptions& options = plan.options;
  Json json{{"parameters", options.parameters},
            {"ranks", options.ranks},
            {"accumulation_steps", options.accumulation_steps},
            {"bytes_per_parameter",
             {{"parameter", options.parameter_bytes},
              {"gradient", options.gradient_bytes},
              {"optimizer", options.optimizer_bytes},
              {"engine_gradient", options.engine_gradient_bytes},
              {"engine_optimizer", options.engine_optimizer_bytes}}}};
  if (options.memory_bytes) json["memory_bytes"] = *options.memory_bytes;
  json["stages"] = Json::array();
  for (const CountStage& row : plan.stages) json["stages"].push_back(stage_json(row));
  return json.dump(2) + "\n";
}

std::string to_json(const ConfigPlan& plan) {
  const Plan& chosen = plan.stages[plan.chosen_stage];
  Json json{{"model", plan.model},
            {"types", plan.types},
            {"parameters", plan.parameters},
            {"parameters_per_rank", plan.parameters_of_rank},
            {"ranks", plan.all_ranks()},
            {"dp_ranks", chosen.ranks},
            {"tensor_ranks", plan.layers.ranks},
            {"sequence", plan.layers.sequence},
            {"accumulation_steps", chosen.accumulation_steps},
            {"hosts", plan.hosts},
            {"device", plan.on_cuda ? "cuda" : "cpu"},
            {"communication", to_string(plan.communication)},
            {"chosen_stage", plan.chosen_stage},
            {"shard_ranks", chosen.shard_ranks},
            {"replica_ranks", chosen.replica_ranks},
            {"budget_bytes", plan.stages[3].budget_bytes}};
  if (plan.memory_bytes) json["memory_bytes"] = *plan.memory_bytes;
  json["stages"] = Json::array();
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    Json row = stage_json(plan, stage);
    if (plan.layers.ranks == 1 && plan.hosts > 1 && std::ssize(plan.stages[stage].network) == plan.hosts)
      for (const HostTraffic& host : plan.stages[stage].network) {
        row["network_bytes_sent_per_step_by_host"].push_back(host.sent_bytes);
        row["network_bytes_received_per_step_by_host"].push_back(host.received_bytes);
      }
    row["total_bytes_per_host"] = plan.total_bytes(stage) * plan.host_ranks();
    if (plan.memory_bytes) {
      row["fits"] = plan.total_bytes(stage) <= *plan.memory_bytes;
      row["largest_parameters"] = *plan.count[stage].engine_largest_parameters;
    }
    json["stages"].push_back(std::move(row));
  }
  if (plan.tiers) json["placement"] = placement_json(plan);
  if (plan.layers.ranks > 1) json["tp_per_step"] = moved_json(plan.tensor_traffic);
  json["units"] = units_json(chosen);
  return json.dump(2) + "\n";
}

}  // namespace zero
