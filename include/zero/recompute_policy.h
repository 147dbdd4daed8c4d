#pragma once
// Which blocks of a chain are recomputed in backward, and where what the others keep waits for it.

#include <cstdint>
#include <string>

namespace zero {

inline constexpr int64_t kRecomputeNone = 0, kRecomputeAll = 1, kRecomputeAuto = -1;

/// Where what blocks keep, and the inputs of recomputed ones, wait for backward.
enum class ActivationTier {
  Device,  // where they are
  Host,    // on a device: in memory of the host. On the CPU that is where they are
  Disk,    // in a file of the rank's
  Auto,    // with kRecomputeAuto: block by block, by the measured rates; a disk only if there is a path
};

struct RecomputePolicy {
  /// Every so many-th block, the first among them: 1 is all, 0 none. kRecomputeAuto: what takes the least
  /// time in memory_bytes, from a step that was measured.
  int64_t every = kRecomputeNone;
  /// Auto: bytes that a rank's blocks may keep of a micro-batch; must be given then. The first block's input
  /// is not counted, nor what a block needs for a moment.
  int64_t memory_bytes = -1;
  /// Inputs of recomputed blocks on a device wait in memory of the host.
  bool inputs_on_host = false;
  /// With kRecomputeAuto: what a block may choose beside keeping and recomputing.
  ActivationTier tier = ActivationTier::Device;
  /// ActivationTier::Disk and Auto: a directory on a disk.
  std::string path = {};
  /// Disk: memory that passes values on, each way (ActivationStoreOptions::buffer_bytes).
  int64_t buffer_bytes = 64LL << 20;
  /// Of the input of a recomputed block each tensor-parallel rank keeps its part (RecomputeOptions).
  bool partition_inputs = false;
  bool operator==(const RecomputePolicy&) const = default;

  /// Of a policy that is not auto.
  bool recomputes(int64_t block) const { return every > 0 && block % every == 0; }
};

}  // namespace zero
