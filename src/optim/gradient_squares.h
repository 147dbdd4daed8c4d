#pragma once
// Squares of gradients that leave the device, or are used up, before the norm is asked for.

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "optim/shard_optimizer.h"

namespace zero {

/// Of some shards, on their device. Not thread safe.
class GradientSquares {
 public:
  /// Takes the squares of a shard's counted elements in place of those known before. `gradient`: the shard's,
  /// on the CPU or on a device with the fused operators. The host does not wait.
  void add(const OptimizerShard& shard, const at::Tensor& gradient);
  /// Of the shard's segments with counted elements, in order: fp64 [blocks] each. Null: not known.
  const std::vector<at::Tensor>* of(int unit) const;
  void clear() { partials_.clear(); }

 private:
  std::map<int, std::vector<at::Tensor>> partials_;  // by unit
};

}  // namespace zero
