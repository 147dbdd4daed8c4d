#include "saving/frozen.h"

#include <string_view>

#include "checkpoint/json.h"
#include "checkpoint/left_out.h"
#include "checkpoint/names.h"
#include "mesh/agree.h"
#include "saving/checkpoint_parts.h"

namespace zero::detail {
namespace {

using checkpoint::kModelPrefix;

// Of a range of a parameter: each element counts with its place in the whole.
uint64_t fingerprint_of(const at::Tensor& part, const std::vector<int64_t>& shape, const BoxRange& range) {
  const at::Tensor values = part.cpu().contiguous();
  const auto width = static_cast<int64_t>(values.element_size());
  const auto* bytes = static_cast<const char*>(values.const_data_ptr());
  uint64_t sum = 0;
  CommonRuns runs(BoxRange::whole(shape), range);
  while (const auto run = runs.next())
    sum += checkpoint::fingerprint_of(bytes + run->from_b * width, run->numel, width, run->from_a);
  return sum;
}

}  // namespace

uint64_t frozen_fingerprint(const at::Tensor& values) {
  const std::vector<int64_t> shape = values.sizes().vec();
  return fingerprint_of(values, shape, BoxRange::whole(shape));
}

bool is_frozen(const ShardedModel& model, const std::string& part_name) {
  if (!part_name.starts_with(kModelPrefix)) return false;
  const auto place = model.place_of(part_name.substr(kModelPrefix.size()));
  return !model.layout(place.unit).trainable;
}

std::map<std::string, uint64_t> frozen_fingerprints(ShardedModel& model) {
  std::map<std::string, uint64_t> sums;
  for (const std::string& name : model.names())
    if (is_frozen(model, std::string(kModelPrefix) + name)) sums[name] = 0;
  if (sums.empty() && model.all.size() == model.mesh.size()) return sums;
  for (const Part& part : parts_of(model, /*share_among_replicas=*/true))
    if (is_frozen(model, part.name)) {
      const PartValues lent = part.borrow(StateStore::Use::Read);
      uint64_t& sum = sums[part.name.substr(kModelPrefix.size())];
      const at::Tensor values = part.is_joined() ? lent.values.cpu().contiguous() : lent.values;
      for (const PartPiece& piece : part.pieces)
        sum +=
            fingerprint_of(part.is_joined() ? taken_piece(values, piece) : values, part.shape, piece.range);
    }

  // Ranks along other axes may hold other parameters, or other boxes of them.
  checkpoint::Json mine = checkpoint::Json::object();
  for (const auto& [name, sum] : sums) mine[name] = checkpoint::to_hex(sum);
  sums.clear();
  for (const std::string& text :
       gather_text(model.mesh, model.mesh.world(), mine.dump(), "frozen parameters")) {
    const checkpoint::Json theirs = checkpoint::parse_object(text, "frozen parameters");
    for (const auto& [name, sum] : JsonPlace(theirs, "frozen parameters").members())
      sums[name] += sum.hex64();
  }
  return sums;
}

}  // namespace zero::detail
