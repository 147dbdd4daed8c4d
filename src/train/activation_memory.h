#pragma once
// activation_checkpointing.memory where the configuration does not say it.

#include <cstdint>
#include <string>

#include "zero/activations.h"
#include "zero/mesh.h"
#include "zero/plan.h"

namespace zero::training {

struct ActivationMemory {
  int64_t bytes = 0;   // the same on all ranks
  std::string reason;  // one line
};

/// What a rank's blocks may keep on this machine's CPU: an equal part of the memory that the host, or the
/// control group it runs in, has free, less what the rank will take still by its plan, and a tenth for what
/// nobody counts. The least of all ranks. Throws Unsupported on a device. Collective.
ActivationMemory activation_memory(const Mesh& mesh, const Plan& plan, const ActivationBytes& activations);

}  // namespace zero::training
