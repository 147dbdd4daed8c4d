#pragma once
// Moments in 8 bits by LibTorch's operators, for any device: the bits of eight_bit.h.

#include <ATen/core/Tensor.h>

#include <functional>

#include "optim/rule_memory.h"

namespace zero::eight_bit_tensors {

/// Updates elements [segment.begin, segment.end) of `memory`, whose states are codes and scales of both
/// moments, a part at a time: update(part, its segment) gets those of some blocks in fp32. `active`: bool [1]
/// on the device; false: nothing changes. Undefined: true.
void update(const RuleMemory& memory, const ShardSegment& segment, const at::Tensor& active,
            const std::function<void(const RuleMemory&, const ShardSegment&)>& update);

}  // namespace zero::eight_bit_tensors
