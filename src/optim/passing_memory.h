#pragma once
// The memory of states whose values do not last: gradients' sums are needed from the first gradient of a step
// to the optimizer's end; in between their memory serves activations.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "compute/lent_pages.h"

namespace zero::detail {

/// Several flat tensors. On the CPU under use_training_allocator() all lie in one range that borrows
/// pages (LentPages), so they fit whatever gaps activations leave. On CUDA each takes a block of the caching
/// allocator. Elsewhere, where freed memory would cost page faults, they keep it. Not thread safe.
class PassingMemory {
 public:
  /// tensor(i) has numels[i] elements.
  PassingMemory(const std::vector<int64_t>& numels, const at::TensorOptions& options);

  const at::Tensor& tensor(size_t i) const { return tensors_[i]; }
  /// Makes sure that a tensor has memory: with no values, unless it had some.
  void hold(size_t i);
  /// The tensors keep their shapes and must not be read until hold().
  void release();

 private:
  std::vector<at::Tensor> tensors_;
  std::shared_ptr<LentPages> pages_;  // or null
  bool lends_tensors_ = false;
};

}  // namespace zero::detail
