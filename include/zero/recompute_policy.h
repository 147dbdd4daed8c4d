#pragma once
// Which blocks of a chain are recomputed in backward.

#include <cstdint>

namespace zero {

inline constexpr int64_t kRecomputeNone = 0, kRecomputeAll = 1, kRecomputeAuto = -1;

struct RecomputePolicy {
  /// Every so many-th block, the first among them: 1 is all, 0 none. kRecomputeAuto: what takes the least
  /// time in memory_bytes, from a step that was measured.
  int64_t every = kRecomputeNone;
  /// Auto: bytes that a rank's blocks may keep of a micro-batch; must be given then. The first block's input
  /// is not counted, nor what a block needs for a moment.
  int64_t memory_bytes = -1;
  /// Inputs of recomputed blocks on a device wait in memory of the host.
  bool inputs_on_host = false;
  bool operator==(const RecomputePolicy&) const = default;

  /// Of a policy that is not auto.
  bool recomputes(int64_t block) const { return every > 0 && block % every == 0; }
};

}  // namespace zero
