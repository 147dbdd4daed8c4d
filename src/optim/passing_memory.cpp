#include "optim/passing_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "base/checked.h"
#include "compute/memory_purpose.h"
#include "seam/storage_access.h"
#include "zero/cpu_allocator.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

constexpr int64_t kAlignmentNumel = 64;  // lines of their own for any dtype

}  // namespace

PassingMemory::PassingMemory(const std::vector<int64_t>& numels, const at::TensorOptions& options)
    : tensors_(numels.size()) {
  const MemoryPurposeScope purpose(MemoryPurpose::Gradients);
  const bool lends = keeps_freed_memory(options.device());
  int64_t all_numel = 0;
  for (const int64_t numel : numels) all_numel += round_up(numel, kAlignmentNumel);
  if (lends && options.device().is_cpu()) try {
      pages_ = std::make_shared<LentPages>(static_cast<size_t>(all_numel) * options.dtype().itemsize());
    } catch (const Error&) {
      // Addresses are limited: each takes a block of the allocator's.
    }
  if (pages_ == nullptr) {
    for (size_t i = 0; i < numels.size(); ++i) tensors_[i] = at::empty({numels[i]}, options);
    lends_tensors_ = lends;
    release();
    return;
  }
  const at::Tensor all = at::from_blob(
      pages_->data(), {all_numel}, [keeps = pages_](void*) {}, options);
  int64_t begin = 0;
  for (size_t i = 0; i < numels.size(); ++i) {
    tensors_[i] = all.narrow(0, begin, numels[i]);
    begin += round_up(numels[i], kAlignmentNumel);
  }
}

void PassingMemory::hold(size_t i) {
  const MemoryPurposeScope purpose(MemoryPurpose::Gradients);
  const at::Tensor& tensor = tensors_[i];
  if (lends_tensors_) obtain_memory(tensor);
  if (pages_ == nullptr) return;
  const auto begin = static_cast<size_t>(tensor.storage_offset()) * tensor.element_size();
  pages_->hold(begin, begin + tensor.nbytes());
}

void PassingMemory::release() {
  if (pages_ != nullptr) pages_->release();
  if (!lends_tensors_) return;
  for (const at::Tensor& tensor : tensors_) release_memory(tensor);
}

}  // namespace zero::detail
