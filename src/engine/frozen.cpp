#include "engine/frozen.h"

#include <cstring>
#include <string_view>

#include "checkpoint/left_out.h"
#include "checkpoint/names.h"
#include "engine/agree.h"
#include "engine/checkpoint_parts.h"

namespace zero::detail {
namespace {

using checkpoint::kModelPrefix;

// Of elements from `begin` on.
uint64_t fingerprint_of(const at::Tensor& part, int64_t begin) {
  const at::Tensor values = part.cpu().contiguous();
  return checkpoint::fingerprint_of(values.const_data_ptr(), values.numel(),
                                    static_cast<int64_t>(values.element_size()), begin);
}

}  // namespace

uint64_t frozen_fingerprint(const at::Tensor& values) { return fingerprint_of(values, 0); }

bool is_frozen(const EngineState& state, const std::string& part_name) {
  if (!part_name.starts_with(kModelPrefix)) return false;
  const auto place = state.model.place_of(part_name.substr(kModelPrefix.size()));
  return !state.model.layout(place.unit).trainable;
}

std::map<std::string, uint64_t> frozen_fingerprints(EngineState& state) {
  const ShardedModel& model = state.model;
  std::map<std::string, uint64_t> sums;
  for (const std::string& name : model.names())
    if (is_frozen(state, std::string(kModelPrefix) + name)) sums[name] = 0;
  if (sums.empty()) return sums;
  for (const Part& part : parts_of(state, /*share_among_replicas=*/true))
    if (is_frozen(state, part.name))
      sums[part.name.substr(kModelPrefix.size())] += fingerprint_of(part.values, part.begin);

  std::string mine;
  for (const auto& [name, sum] : sums) mine.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  for (auto& [name, sum] : sums) sum = 0;
  for (const std::string& theirs : gather_text(model.mesh, model.all, mine, "frozen parameters")) {
    size_t at = 0;
    for (auto& [name, sum] : sums) {
      uint64_t part = 0;
      std::memcpy(&part, theirs.data() + at, sizeof part);
      at += sizeof part;
      sum += part;
    }
  }
  return sums;
}

}  // namespace zero::detail
