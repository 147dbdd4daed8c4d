#pragma once
// A ZeRO stage as data. Nothing outside placement.cpp knows what a stage's number means.

#include <string_view>

namespace zero {

/// Where one kind of tensor lives along the sharding axis between two micro-batches.
enum class Placement {
  Replicate,  // every rank holds the whole, up to date
  Common,     // the same with one memory for all ranks of a host, of which each is charged its part
  Partial,    // every rank holds the whole of its own unreduced contribution
  Shard,      // every rank holds its part
};

/// One row of the table (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 5).
struct Placements {
  Placement parameter;
  Placement gradient;
  Placement optimizer;
  bool operator==(const Placements&) const = default;
};

inline constexpr int kStages = 4;

/// Stages: 0 data parallel, 1 optimizer states, 2 + gradients, 3 + parameters. `common`: the ranks that share
/// a shard share memory too, at stage 0 all ranks; then one copy of the parameters is kept there, and stage 0
/// is stage 1. Throws Config for any other number.
Placements placements_for(int stage, bool common = false);

/// The lowest stage that shards the parameters themselves.
int stage_that_shards_parameters();

std::string_view to_string(Placement placement);

}  // namespace zero
