#include "saving/checkpoint_parts.h"

#include "checkpoint/names.h"
#include "optim/split_master.h"

namespace zero::detail {

void Part::copy_to(const at::Tensor& out) const {
  if (remainder.defined()) return join_master(values, remainder, out);
  at::Tensor(out).copy_(values);
}

namespace {

/// One of several that hold the same.
struct Share {
  int64_t index = 0, count = 1;
};

// Among the ranks of the mesh that hold the same shard of a parameter: those along the axes that it is
// replicated over, and replicas in the data-parallel group.
Share share_of(const ShardedModel& model, const ParameterPart& part) {
  Share share;
  const auto add = [&](const Group& group) {
    share = {.index = share.index * group.size() + group.rank(), .count = share.count * group.size()};
  };
  for (const std::string& axis : part.replicated_over) add(model.mesh.group(axis));
  add(model.replica_group);
  return share;
}

}  // namespace

std::vector<Part> parts_of(ShardedModel& model, bool share_among_replicas, StateStore::Use use) {
  std::vector<Part> result;
  auto add = [&](const std::string& prefix, int unit, const std::shared_ptr<StateStore::Lease>& lease,
                 const at::Tensor& shard, const at::Tensor& remainder) {
    for (const ShardSegment& segment : model.segments(unit)) {
      const auto place = model.place_of(segment.name);
      const ParameterPart& held = model.layout(unit).parameters[static_cast<size_t>(place.parameter)].part;
      const Share share = share_among_replicas ? share_of(model, held) : Share();
      const int64_t from = segment.numel() * share.index / share.count,
                    to = segment.numel() * (share.index + 1) / share.count;
      if (from == to) continue;
      const auto part = [&](const at::Tensor& flat) {
        return flat.defined() ? flat.narrow(0, segment.begin + from, to - from) : at::Tensor();
      };
      result.push_back({prefix + segment.name, held.global_shape,
                        BoxRange{held.box, segment.parameter_begin + from, to - from}, part(shard),
                        part(remainder), lease});
    }
  };
  const std::vector<std::string> names = model.optimizer->state_names();
  std::vector<std::string_view> kinds{kParameterState, kMasterState};
  kinds.insert(kinds.end(), names.begin(), names.end());
  std::vector<std::shared_ptr<StateStore::Lease>> leases;
  for (const Unit& unit : model.units) {
    leases.push_back(std::make_shared<StateStore::Lease>(model.states.lend(unit.index, kinds, use)));
    const StateStore::Lease& lease = *leases.back();
    const bool split = unit.master == MasterForm::Remainder;
    const bool whole = unit.master == MasterForm::Whole;
    add(std::string(checkpoint::kModelPrefix), unit.index, leases.back(),
        lease[whole ? kMasterState : kParameterState], split ? lease[kMasterState] : at::Tensor());
  }
  for (const int unit : model.trainable)
    for (const std::string& name : names)
      add(std::string(checkpoint::kOptimizerPrefix) + name + "/", unit, leases[unit], (*leases[unit])[name],
          {});
  return result;
}

std::string own_prefix(const ShardedModel& model) {
  return std::string(checkpoint::kRankPrefix) + std::to_string(model.mesh.rank()) + "/";
}

std::string device_random_name(const ShardedModel& model) {
  return "random_" + c10::DeviceTypeName(model.mesh.device().type(), /*lower_case=*/true);
}

}  // namespace zero::detail
