#pragma once
// What one shard's update by a rule reads and writes.

#include <ATen/core/Tensor.h>

#include <vector>

#include "optim/rule_buffers.h"
#include "optim/shards.h"

namespace zero {

struct RuleMemory {
  StateStore::Lease lease;      // of what is updated, and of gradients to read
  at::Tensor master, gradient;  // master: fp32, or int16 beside a bf16 parameter
  at::Tensor parameter;         // undefined: no copy
  // In the order of the rule's row: fp32, or in 8 bits codes and scales of each.
  std::vector<at::Tensor> states;
  /// Beside a device: what of the lease the host has, and its copy on the device, which stands above.
  struct Staged {
    at::Tensor on_device, on_host;
    bool comes_back;
  };
  std::vector<Staged> staged = {};

  /// What the host has of this comes to the device. Waits.
  void stage(c10::Device device);
  /// And goes back with what the device has made of it. Waits.
  void put_back() const;
};

}  // namespace zero
