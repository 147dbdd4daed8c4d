#pragma once
// The host's memory for states beside a device.

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace zero::detail {

/// Tensors cut from a few large blocks. Allocators of pinned memory round blocks up to powers of two, so
/// blocks have such sizes already: the largest that what is still to come fills. Not thread safe.
class HostMemory {
 public:
  /// `bytes`: of all tensors that will be taken; more may be. `pinned`: page-locked, by the allocator of the
  /// process's device.
  HostMemory(int64_t bytes, bool pinned) : expected_bytes_(bytes), pinned_(pinned) {}

  /// [numel] zeros, at a multiple of 64 bytes. Lives as long as it is held.
  at::Tensor zeros(int64_t numel, at::ScalarType dtype);
  bool is_pinned() const { return pinned_; }
  /// Of the blocks.
  int64_t block_bytes() const { return block_bytes_; }

 private:
  struct Block {
    at::Tensor memory;
    int64_t used_bytes = 0;
  };
  Block& block_for(int64_t bytes);

  int64_t expected_bytes_;
  bool pinned_;
  int64_t block_bytes_ = 0;
  std::vector<Block> blocks_;
};

/// Page-locked memory at a multiple of `alignment_bytes`, a power of two.
std::shared_ptr<std::byte> pinned_bytes(int64_t bytes, int64_t alignment_bytes);

}  // namespace zero::detail
