#include "engine/frozen.h"

#include <cstring>
#include <string_view>

#include "engine/agree.h"
#include "engine/checkpoint_parts.h"

namespace zero::detail {
namespace {

constexpr std::string_view kModelPrefix = "model/";

// Terms of a sum, so that parts can be added in any order.
uint64_t term_of(uint64_t place, uint64_t bits) {
  uint64_t x = bits + (place + 1) * 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

// Of elements from `begin` on.
uint64_t fingerprint_of(const at::Tensor& part, int64_t begin) {
  const at::Tensor values = part.cpu().contiguous();
  const auto* bytes = static_cast<const char*>(values.const_data_ptr());
  const auto width = static_cast<size_t>(values.element_size());
  uint64_t sum = 0;
  for (int64_t i = 0; i < values.numel(); ++i) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes + static_cast<size_t>(i) * width, width);
    sum += term_of(static_cast<uint64_t>(begin + i), bits);
  }
  return sum;
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
