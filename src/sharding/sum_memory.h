#pragma once
// The memory of summed gradients. They are needed from the first gradient of a step to the optimizer's end;
// in between it serves activations.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "compute/lent_pages.h"

namespace zero::detail {

/// One flat tensor per unit. On the CPU under use_training_allocator() all lie in one range that borrows
/// pages (LentPages), so they fit whatever gaps activations leave. On CUDA each takes a block of the caching
/// allocator. Elsewhere, where freed memory would cost page faults, they keep it. Not thread safe.
class SumMemory {
 public:
  /// tensor(i) has numels[i] elements.
  SumMemory(const std::vector<int64_t>& numels, const at::TensorOptions& options);

  const at::Tensor& tensor(size_t unit) const { return tensors_[unit]; }
  /// Makes sure that a unit's tensor has memory: with no values, unless it had some.
  void hold(size_t unit);
  /// The tensors keep their shapes and must not be read until hold().
  void release();

 private:
  std::vector<at::Tensor> tensors_;
  std::shared_ptr<LentPages> pages_;  // or null
  bool lends_tensors_ = false;
};

}  // namespace zero::detail
