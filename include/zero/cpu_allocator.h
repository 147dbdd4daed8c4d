#pragma once
// Where CPU tensors get their memory while a model trains. The C library's allocator gives large blocks back
// to the kernel at once and asks for them again in the next operator, so every step pays for its page faults
// anew; this one keeps them.

#include <c10/core/Device.h>

#include <cstdint>

namespace zero {

struct CpuAllocatorStats {
  int64_t used_bytes = 0;  // by tensors, now
  int64_t peak_bytes = 0;  // the most they used, since reset_cpu_allocator_peak()
  int64_t span_bytes = 0;  // from the first to the last byte ever used: what may be resident
};

/// Makes LibTorch take the memory of CPU tensors of 32 KiB and more from one range of addresses with huge
/// pages, in gaps that others left; smaller ones stay with the C library. Freed memory is kept and used
/// again: see release_free_memory(). For the life of the process; calling it again does nothing. Tensors made
/// before keep their memory. Thread safe once it has returned. The range is twice the physical memory, of
/// which only what is touched counts, or half of a limit on addresses (ulimit -v); what finds no place there
/// is the C library's. False where the kernel refuses a range that is worth having: then all is.
bool use_training_allocator();

/// Gives pages that no tensor uses back to the kernel, as torch.cuda.empty_cache() does: for a process that
/// goes on with something else. What needs memory next pays for page faults anew. Thread safe; does nothing
/// without use_training_allocator().
void release_free_memory();

/// Zeros unless use_training_allocator() was called.
CpuAllocatorStats cpu_allocator_stats();

/// The most that tensors use is counted from now on: peak_bytes begins at used_bytes.
void reset_cpu_allocator_peak();

/// True where a tensor that is freed and made again costs no page faults: on CUDA, and after
/// use_training_allocator().
bool keeps_freed_memory(c10::Device device);

}  // namespace zero
