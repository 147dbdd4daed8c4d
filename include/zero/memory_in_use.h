#pragma once
// What a rank's process takes of its host's memory, as a plan counts it: tensors under
// use_training_allocator(), its blocks of memory that ranks share, its part of what they keep one copy of,
// and memory through which a disk's states pass. Not in it: what the C library gives to tensors below 32 KiB,
// programs' pages, and pinned memory beside a device.

#include <cstdint>

namespace zero {

struct MemoryInUse {
  int64_t used_bytes = 0;  // now
  int64_t peak_bytes = 0;  // the most, since reset_memory_peak()
};

/// Of this process. Thread safe.
MemoryInUse memory_in_use();

/// The most is counted from now on: peak_bytes begins at used_bytes. Thread safe.
void reset_memory_peak();

namespace detail {

/// For whoever takes memory (bytes > 0) or gives it back. Thread safe.
void count_memory(int64_t bytes) noexcept;

}  // namespace detail
}  // namespace zero
