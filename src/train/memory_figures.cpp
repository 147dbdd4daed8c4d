#include "train/memory_figures.h"

#include <map>
#include <string>

#include "plan/state_bytes.h"
#include "zero/plan.h"

namespace zero::training {
namespace {

using Bytes = MemoryFigures::Bytes;

int64_t& in(Bytes& bytes, Tier tier) { return bytes[static_cast<size_t>(tier)]; }

/// As the plan counts them (RankPlan).
struct States {
  Bytes parameters{}, gradients{}, masters{}, optimizer{};
};

States states_of(const Plan& plan) {
  States states;
  const int owners = plan.placements.parameter == Placement::Shard ? plan.shard_ranks : plan.common_ranks;
  const bool whole_gradient = plan.placements.gradient == Placement::Partial && plan.accumulation_steps > 1;
  for (const UnitLayout& unit : plan.units) {
    in(states.parameters, unit.tiers.parameter) += unit.slab_bytes() / owners;
    if (!unit.trainable) continue;
    if (!plan.keeps_gradient_off_disk(unit) || whole_gradient)
      in(states.gradients, unit.tiers.gradient) +=
          (whole_gradient ? unit.padded_numel : unit.shard_numel) * plan.state.gradient_bytes;
    in(states.masters, unit.tiers.master) += unit.shard_numel * master_bytes_of(plan.state, unit.dtype);
    in(states.optimizer, unit.tiers.optimizer) += plan.state.optimizer_bytes_of(unit.shard_numel);
    in(states.optimizer, Tier::Device) += unit.factored_numel * kRuleStateBytes;
  }
  return states;
}

}  // namespace

MemoryFigures memory_figures(const Engine& engine, const EngineStats& stats, const BlockChain& chain) {
  const States states = states_of(engine.plan());
  const ActivationStoreStats host = chain.stored(Tier::Host), disk = chain.stored(Tier::Disk);
  Bytes gathered{}, activations{}, buffers{};
  in(gathered, Tier::Device) = stats.resident_bytes;
  in(activations, Tier::Host) = host.peak_stored_bytes;
  in(activations, Tier::Disk) = disk.peak_stored_bytes;
  in(buffers, Tier::Host) = stats.disk.ring_bytes + disk.buffer_bytes;
  MemoryFigures figures;
  const auto add = [&](const char* purpose, const Bytes& bytes) {
    if (bytes != Bytes{}) figures.purposes.emplace_back(purpose, bytes);
  };
  add("parameters", states.parameters);
  add("gradients", states.gradients);
  add("masters", states.masters);
  add("optimizer", states.optimizer);
  add("gathered", gathered);
  add("activations", activations);
  add("buffers", buffers);
  return figures;
}

DiskFigures disk_figures(const EngineStats& stats, const BlockChain& chain) {
  const ActivationStoreStats activations = chain.stored(Tier::Disk);
  return {.read_bytes = stats.disk.read_bytes + activations.read_bytes,
          .written_bytes = stats.disk.written_bytes + activations.written_bytes,
          .busy_s = stats.disk.busy_s + activations.busy_s};
}

DiskFigures difference(const DiskFigures& now, const DiskFigures& before) {
  return {.read_bytes = now.read_bytes - before.read_bytes,
          .written_bytes = now.written_bytes - before.written_bytes,
          .busy_s = now.busy_s - before.busy_s};
}

void add_counters(Trace& trace, const MemoryFigures& memory, const DiskFigures& disk, double step_s) {
  const auto now = Trace::Clock::now();
  for (const Tier tier : kTiers) {
    std::vector<std::pair<std::string, double>> series;
    for (const auto& [purpose, bytes] : memory.purposes)
      if (const int64_t here = bytes[static_cast<size_t>(tier)]; here != 0)
        series.emplace_back(purpose, static_cast<double>(here) / (1 << 20));
    if (!series.empty()) trace.counter(std::string(to_string(tier)) + ", MiB", now, std::move(series));
  }
  if (disk == DiskFigures{} || !(step_s > 0)) return;
  const auto rate = [&](int64_t bytes) { return static_cast<double>(bytes) / step_s / 1e6; };
  trace.counter("disk, MB/s", now, {{"read", rate(disk.read_bytes)}, {"written", rate(disk.written_bytes)}});
}

}  // namespace zero::training
