#include "compute/host_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "compute/zeros.h"

namespace zero::detail {
namespace {

constexpr int64_t kAlignmentBytes = 64;

int64_t power_below(int64_t bytes) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(bytes, 1))));
}
int64_t power_above(int64_t bytes) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(bytes)));
}

}  // namespace

HostMemory::Block& HostMemory::block_for(int64_t bytes) {
  for (Block& block : blocks_)
    if (block.memory.numel() - block.used_bytes >= bytes) return block;
  const int64_t size = std::max(power_below(expected_bytes_), power_above(bytes));
  blocks_.push_back(
      {.memory = at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(true)), .used_bytes = 0});
  block_bytes_ += size;
  return blocks_.back();
}

// Allocators of pinned memory give whole pages: that they do not is for others.
std::shared_ptr<std::byte> pinned_bytes(int64_t bytes, int64_t alignment_bytes) {
  const auto take = [](int64_t size) {
    return at::empty({size}, at::TensorOptions(at::kByte).pinned_memory(true));
  };
  const auto rest_of = [&](const at::Tensor& memory) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(memory.const_data_ptr()) %
                                static_cast<uintptr_t>(alignment_bytes));
  };
  at::Tensor memory = take(bytes);
  if (rest_of(memory) != 0) memory = take(bytes + alignment_bytes);
  const int64_t rest = rest_of(memory);
  auto* const first =
      static_cast<std::byte*>(memory.mutable_data_ptr()) + (rest == 0 ? 0 : alignment_bytes - rest);
  return {first, [keeps = memory](std::byte*) {}};
}

at::Tensor HostMemory::zeros(int64_t numel, at::ScalarType dtype) {
  if (!pinned_) return detail::zeros(numel, dtype);
  const int64_t bytes =
      round_up(std::max<int64_t>(numel, 1) * static_cast<int64_t>(c10::elementSize(dtype)), kAlignmentBytes);
  Block& block = block_for(bytes);
  expected_bytes_ = std::max<int64_t>(expected_bytes_ - bytes, 0);
  auto* const data = static_cast<char*>(block.memory.mutable_data_ptr()) + block.used_bytes;
  block.used_bytes += bytes;
  // With a storage of its own, which tells how many hold it.
  at::Tensor result = at::from_blob(
      data, {numel}, [keeps = block.memory](void*) {}, at::TensorOptions(dtype));
  return result.zero_();
}

}  // namespace zero::detail
