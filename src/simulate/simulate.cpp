#include "simulate/simulate.h"

#include <algorithm>
#include <utility>

#include "plan/residency_policy.h"
#include "simulate/imagined_ranks.h"
#include "virtual/transport.h"
#include "virtual/virtual_device.h"
#include "zero/error.h"
#include "zero/mesh.h"

namespace zero::simulate {
namespace {

void check_simulation(const Config& config, const SimulateOptions& options) {
  require(options.ranks >= 1, ErrorKind::Config, "--ranks",
          "expected at least 1, got " + std::to_string(options.ranks));
  require(options.rank >= 0 && options.rank < options.ranks, ErrorKind::Config, "--rank",
          "expected 0 to " + std::to_string(options.ranks - 1) + " of the " + std::to_string(options.ranks) +
              " ranks, got " + std::to_string(options.rank));
  require(config.recompute.every != kRecomputeAuto, ErrorKind::Unsupported,
          config.place("activation_checkpointing.recompute"),
          "auto chooses by measured times, and a simulation measures none",
          "give all, none or a number: --set activation_checkpointing.recompute=all");
  require(config.recompute.tier == ActivationTier::Device || config.recompute.tier == ActivationTier::Host,
          ErrorKind::Unsupported, config.place("activation_checkpointing.offload"),
          "activations on a disk are values, and a simulation has shapes alone",
          "--set activation_checkpointing.offload=host, or none");
}

virtual_device::VirtualDeviceOptions device_options(const SimulateOptions& options) {
  virtual_device::VirtualDeviceOptions devices;
  devices.description = options.device;
  devices.description.within_host = options.network.within_host;
  devices.description.between_hosts = options.network.between_hosts;
  devices.description.network_cards = options.network.network_cards;
  devices.capacity_bytes = options.memory_bytes.value_or(0);
  devices.checks = false;  // that accesses are ordered is for tests, which have values
  devices.trace = options.trace;
  devices.shapes_only = true;
  return devices;
}

Mesh imagined_mesh(const Config& config, const SimulateOptions& options, c10::Device device) {
  const int of_host = options.network.ranks_per_host;
  Rendezvous rendezvous;
  rendezvous.rank = options.rank;
  rendezvous.size = options.ranks;
  rendezvous.local_rank = options.rank % of_host;
  rendezvous.local_size = std::min(of_host, options.ranks - options.rank + rendezvous.local_rank);
  rendezvous.port = 1;  // no rank is met there
  MeshOptions mesh;
  mesh.axes = {{"pp", config.parallel.pipeline}, {"dp", -1}, {"tp", config.parallel.tensor}};
  mesh.tensor_across_hosts = config.parallel.tensor_across_hosts;
  mesh.device = device;
  mesh.own_transport = [of_host](const detail::TransportOptions& transport) {
    return virtual_device::make_virtual_transport_over(make_imagined_ranks(of_host), transport);
  };
  return Mesh::join(rendezvous, mesh);
}

std::vector<std::string> names_of(const std::vector<int>& units, const Plan& plan) {
  std::vector<std::string> names;
  names.reserve(units.size());
  for (const int unit : units) names.push_back(plan.units[static_cast<size_t>(unit)].name);
  return names;
}

ResidencyOptions residency_of(const Plan& plan) {
  ResidencyOptions options;
  options.prefetch_bytes = plan.prefetch_bytes;
  if (plan.placements.parameter == Placement::Shard) options.budget_bytes = plan.budget_bytes;
  for (const UnitLayout& unit : plan.units) {
    const bool stays = plan.shard_ranks == 1 && !plan.is_away(unit);
    options.unit_bytes.push_back(stays ? 0 : unit.slab_bytes());
    options.lasting.push_back(!unit.trainable);
    options.persistent.push_back(unit.persistent);
  }
  return options;
}

// The decisions of the steady step: the engine's policy over the engine's order.
std::vector<Touch> schedule_of(const StepFigures& step) {
  const Plan& plan = step.plan;
  std::vector<int> order;
  for (const std::string& name : step.order)
    for (size_t unit = 0; unit < plan.units.size(); ++unit)
      if (plan.units[unit].name == name) order.push_back(static_cast<int>(unit));
  ResidencyPolicy policy(residency_of(plan));
  std::vector<Touch> schedule;
  for (int pass = 0; pass < 3; ++pass) {
    schedule.clear();
    ResidencyPolicy::Actions pending = policy.begin_pass(ResidencyPolicy::Pass::Train);
    for (const int unit : order) {
      const ResidencyPolicy::Actions actions = policy.touch({&unit, 1});
      pending.evict.insert(pending.evict.end(), actions.evict.begin(), actions.evict.end());
      pending.fetch.insert(pending.fetch.end(), actions.fetch.begin(), actions.fetch.end());
      schedule.push_back({plan.units[static_cast<size_t>(unit)].name, names_of(pending.evict, plan),
                          names_of(pending.fetch, plan)});
      pending = {};
    }
    policy.end_pass();
    policy.forget_values();
  }
  return schedule;
}

}  // namespace

Simulation simulate(const Config& config, const SimulateOptions& options) {
  check_simulation(config, options);
  virtual_device::VirtualDevices devices(device_options(options));
  const Mesh mesh = imagined_mesh(config, options, devices.device());
  Simulation simulation;
  simulation.step = run_steps(config, mesh, devices, {.steps = options.steps, .without_values = true});
  const StepFigures& step = simulation.step;
  simulation.model = config.model.type + ", " + std::to_string(config.model.layers) + " layers, width " +
                     std::to_string(config.model.width);
  simulation.types = std::string(to_string(*config.precision.param_dtype)) + " parameters, " +
                     std::string(rule_name(config.optimizer.rule)) + ", " +
                     std::string(to_string(*config.precision.grad_accum_dtype)) + " gradients";
  for (const UnitLayout& unit : step.plan.units) simulation.parameters += unit.numel;
  simulation.tokens = config.train_batch_size * config.data.sequence_length;
  if (step.plan.rank.gather_window_bytes > 0)
    simulation.schedule = schedule_of(step);
  else
    for (const std::string& unit : step.order) simulation.schedule.push_back({unit, {}, {}});
  simulation.trace_events = devices.trace_events();
  return simulation;
}

}  // namespace zero::simulate
