#include "engine/checkpoint_parts.h"

#include "checkpoint/names.h"
#include "optim/split_master.h"

namespace zero::detail {

void Part::copy_to(const at::Tensor& out) const {
  if (remainder.defined()) return join_master(values, remainder, out);
  at::Tensor(out).copy_(values);
}

std::vector<Part> parts_of(EngineState& state, bool share_among_replicas) {
  ShardedModel& model = state.model;
  std::vector<Part> result;
  const int64_t replicas = share_among_replicas ? model.replica_group.size() : 1;
  const int64_t replica = share_among_replicas ? model.replica_group.rank() : 0;
  auto add = [&](const std::string& prefix, int unit, const at::Tensor& shard, const at::Tensor& remainder) {
    for (const ShardSegment& segment : model.segments(unit)) {
      const int64_t from = segment.numel() * replica / replicas,
                    to = segment.numel() * (replica + 1) / replicas;
      if (from == to) continue;
      const auto place = model.place_of(segment.name);
      const auto part = [&](const at::Tensor& flat) {
        return flat.defined() ? flat.narrow(0, segment.begin + from, to - from) : at::Tensor();
      };
      result.push_back({prefix + segment.name,
                        model.layout(unit).parameters[static_cast<size_t>(place.parameter)].shape,
                        segment.parameter_begin + from, part(shard), part(remainder)});
    }
  };
  for (size_t u = 0; u < model.units.size(); ++u) {
    const Unit& unit = model.units[u];
    const bool plain = unit.has_plain_values();
    add(std::string(checkpoint::kModelPrefix), static_cast<int>(u),
        plain && unit.master.defined() ? unit.master : unit.shard, plain ? at::Tensor() : unit.master);
  }
  for (const OptimizerState& kind : model.optimizer->state())
    add(std::string(checkpoint::kOptimizerPrefix) + kind.name + "/",
        model.trainable[static_cast<size_t>(kind.shard)], kind.values, {});
  return result;
}

std::string own_prefix(const ShardedModel& model) {
  return std::string(checkpoint::kRankPrefix) + std::to_string(model.all.rank()) + "/";
}

}  // namespace zero::detail
