#include "zero/placement.h"

#include <array>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {
using enum Placement;
constexpr std::array<Placements, kStages> kApartStages{{
    {.parameter = Replicate, .gradient = Partial, .optimizer = Replicate},
    {.parameter = Replicate, .gradient = Partial, .optimizer = Shard},
    {.parameter = Replicate, .gradient = Shard, .optimizer = Shard},
    {.parameter = Shard, .gradient = Shard, .optimizer = Shard},
}};
// Ranks that share memory have no use for replicas of what is the same: stage 0 keeps one copy of it too.
constexpr std::array<Placements, kStages> kCommonStages{{
    {.parameter = Common, .gradient = Partial, .optimizer = Shard},
    {.parameter = Common, .gradient = Partial, .optimizer = Shard},
    {.parameter = Common, .gradient = Shard, .optimizer = Shard},
    {.parameter = Common, .gradient = Shard, .optimizer = Shard},
}};
}  // namespace

Placements placements_for(int stage, bool common) {
  require(stage >= 0 && stage < kStages, ErrorKind::Config, "stage",
          "expected 0, 1, 2 or 3, got " + std::to_string(stage));
  return (common ? kCommonStages : kApartStages)[stage];
}

int stage_that_shards_parameters() {
  int stage = 0;
  while (placements_for(stage).parameter != Shard) ++stage;
  return stage;
}

std::string_view to_string(Placement placement) {
  switch (placement) {
    case Replicate:
      return "replicated";
    case Common:
      return "common";
    case Partial:
      return "partial";
    case Shard:
      return "sharded";
  }
  return "unknown";
}

}  // namespace zero
