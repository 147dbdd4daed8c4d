#pragma once
// What a rank's states and activations take, by purpose and by the memory they are in.

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "zero/tier.h"

namespace zero {

struct MemoryFigures {
  /// Bytes in each tier, by number of the tier.
  using Bytes = std::array<int64_t, kTiers.size()>;
  // "parameters", "gradients", "masters", "optimizer", "gathered" (slabs beyond what the rank owns),
  // "activations" (those that wait elsewhere, the most of them so far) and "buffers" (that states and
  // activations on a disk pass through): those that are not 0. Of states, what the plan says; on a CPU
  // Tier::Host is the same memory as Tier::Device.
  std::vector<std::pair<std::string, Bytes>> purposes;

  int64_t bytes_in(Tier tier) const {
    int64_t sum = 0;
    for (const auto& [purpose, bytes] : purposes) sum += bytes[static_cast<size_t>(tier)];
    return sum;
  }
};

/// What went to and came from a rank's disk.
struct DiskFigures {
  int64_t read_bytes = 0, written_bytes = 0;
  double busy_s = 0;  // time in which a disk was asked for something
  bool operator==(const DiskFigures&) const = default;
};

}  // namespace zero
