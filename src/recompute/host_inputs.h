#pragma once
// Tensors on a device that wait for backward in pinned memory of the host: DeepSpeed's cpu_checkpointing.

#include "recompute/saved_tensor_hooks.h"

namespace zero::detail {

/// Copies out and in are queued on the device's current stream; only memory of the host is held meanwhile.
class HostInputs : public SavedTensorHooks {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> make() override;
};

}  // namespace zero::detail
