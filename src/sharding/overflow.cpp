#include "sharding/overflow.h"

#include <ATen/ops/isfinite.h>

#include <limits>
#include <vector>

#include "mesh/agree.h"

namespace zero::detail {
namespace {

bool has_overflow(const at::Tensor& gradient) {
  return gradient.numel() > 0 && !gradient.isfinite().all().item<bool>();
}

// This rank's first: its number among the rank's parameters, or -1.
int own_overflow(ShardedModel& model) {
  for (const OptimizerShard& shard : model.optimizer_shards) {
    if (model.has_used_up(shard.unit)) {
      const int found = model.overflow_of_used_up(shard.unit);
      if (found >= 0) return found;
      continue;
    }
    const auto lease = model.states.lend(shard.unit, {kGradientState}, StateStore::Use::Read);
    for (const ShardSegment& segment : shard.segments)
      if (has_overflow(lease[kGradientState].narrow(0, segment.begin, segment.numel())))
        return segment.parameter;
  }
  return -1;
}

}  // namespace

std::string first_overflow(ShardedModel& model) {
  const int own = own_overflow(model);
  const std::string mine = own < 0 ? "" : std::to_string(own) + " " + model.names()[static_cast<size_t>(own)];
  const Group world = model.mesh.world();
  const std::vector<std::string> texts = gather_text(model.mesh, world, mine, "overflow");
  std::string found;
  int first = std::numeric_limits<int>::max();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) continue;
    const int number = std::stoi(texts[i]);
    if (number >= first) continue;
    first = number;
    found = texts[i].substr(texts[i].find(' ') + 1) + " on rank " + std::to_string(world.members()[i]);
  }
  return found;
}

}  // namespace zero::detail
