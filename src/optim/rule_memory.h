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
};

}  // namespace zero
