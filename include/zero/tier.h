#pragma once
// The memories that states can be in.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace zero {

namespace tiers {
class BlockDevices;
}

/// Which memory a state is in while nobody uses it.
enum class Tier {
  Device,  // of the device that computes
  Host,    // the host's: on CPU the same memory
  Disk,    // a file of this rank's
};

inline constexpr std::array kTiers{Tier::Device, Tier::Host, Tier::Disk};

/// The tiers of one unit's states, by kind.
struct StateTiers {
  Tier parameter = Tier::Device;
  Tier gradient = Tier::Device;
  Tier master = Tier::Device;  // beside 16-bit parameters: an fp32 parameter is its own
  Tier optimizer = Tier::Device;
  bool operator==(const StateTiers&) const = default;
};

/// Whether a unit whose states are on disk is updated as soon as its gradient is final, while backward goes
/// on with others. A gradient in Tier::Disk is then reduced in memory and used up by the update; on disk are
/// only sums that wait for more micro-batches. Until step() nobody else sees such a gradient
/// (full_gradient()), and what the update was made with cannot change any more: the rate, values written in a
/// GatherScope, a second contribution of the same backward are errors.
enum class StepInBackward {
  Auto,  // where nothing of the update depends on all gradients: no clipping, no rule with norms; on CPU,
         // and states are not placed within a given memory. As On.
  On,    // or it is an error that says why not. A step whose gradients are not finite is undone: the file has
         // two places for every piece of what is updated.
  InPlace,  // with one place. A step that is not finite, or a backward that fails or is given up, is an error
            // that loses the states: a new engine goes on from the last checkpoint. Not with loss scaling,
            // which lives on steps that are skipped.
  Off,
};

/// How states outside the device's memory are kept. Results are the same bits whatever it says.
struct OffloadOptions {
  // 0..1: of the trainable elements, the share whose gradients, masters and optimizer states go where
  // StateTiers says, in whole units, the first ones first. Those of the rest stay in the device's memory.
  double ratio = 1;
  double parameter_ratio = 1;  // the same of all elements and parameters
  // StateTiers::parameter Disk: so many elements of all ranks stay in the host's memory, in whole units, the
  // first ones first.
  int64_t parameter_host_numel = 0;
  // Tier::Disk: an existing directory on a disk. Each rank has a file there, for its user alone and without a
  // name, of the size that `plan` says, which is taken at construction.
  std::string path = {};
  int buffer_count = 4;             // pieces of states in memory at a time, at least 2
  int64_t piece_numel = 2LL << 20;  // elements of a piece: each buffer has room for all states of so many
  bool read_ahead = true;           // pieces are read while others are updated
  bool write_behind = true;         // and written while training goes on
  StepInBackward step_in_backward = StepInBackward::Auto;
  int64_t block_bytes = 1LL << 20;  // of one transfer and one checksum: a multiple of 4096
  int queue_depth = 16;             // transfers in flight
  int threads = 2;                  // that transfer where io_uring is not permitted
  bool pin_memory = true;           // Tier::Host beside a device: page-locked memory
  // Instead of the system's transfers; for tests of disks that fail.
  std::shared_ptr<const tiers::BlockDevices> devices = {};
  bool operator==(const OffloadOptions&) const = default;
};

constexpr std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::Device:
      return "device";
    case Tier::Host:
      return "host";
    case Tier::Disk:
      return "disk";
  }
  return "unknown";
}

}  // namespace zero
