#include "zero/cpu_allocator.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/block_map.h"
#include "base/checked.h"
#include "compute/lent_pages.h"
#include "compute/zeros.h"
#include "zero/memory_in_use.h"

namespace zero {
namespace {

constexpr size_t kSmallest = 32 << 10;
constexpr size_t kHugePage = detail::kLentPageBytes;
constexpr size_t kOpenedAtATime = size_t{64} << 20;
constexpr size_t kLeastRange = size_t{256} << 20;  // a smaller one is not worth having

/// Addresses without memory, of a whole number of huge pages.
struct Range {
  char* begin;
  size_t bytes;
};

// Twice the physical memory, so that gaps do not matter; less where the process may have less, of which it
// needs a part for other things. Not to be read or written before it is opened: such addresses do not count
// where the kernel promises no more memory than it has.
std::optional<Range> reserve_range() {
  const size_t physical = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  size_t bytes = 2 * physical;
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    bytes = std::min<size_t>(bytes, limit.rlim_cur / 2);
  for (; bytes >= kLeastRange; bytes /= 2) {
    bytes = bytes / kHugePage * kHugePage;
    void* found =
        mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) continue;
    const size_t begin = round_up(reinterpret_cast<uintptr_t>(found), kHugePage);
    madvise(reinterpret_cast<void*>(begin), bytes, MADV_HUGEPAGE);  // a wish: kernels may be built without
    return Range{reinterpret_cast<char*>(begin), bytes};
  }
  return std::nullopt;
}

// Where the range has no place, or the kernel no memory for it, tensors are the C library's.
class TrainingAllocator final : public c10::Allocator {
 public:
  explicit TrainingAllocator(Range range) : bytes_(range.bytes), base_(range.begin), blocks_(bytes_) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= kSmallest)
      if (const auto taken = take(bytes)) return pointer_to(taken->data);
    return c10::GetDefaultCPUAllocator()->allocate(bytes);
  }

  c10::DataPtr allocate_zeros(size_t bytes) {
    const std::optional<Taken> taken = bytes >= kSmallest ? take(bytes) : std::nullopt;
    c10::DataPtr memory = taken ? pointer_to(taken->data) : c10::GetDefaultCPUAllocator()->allocate(bytes);
    if (bytes > 0 && !(taken && taken->is_untouched)) std::memset(memory.get(), 0, bytes);
    return memory;
  }

  // Tensors of both kinds go back through the deleter that knows them; a bare pointer is looked at.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  // Pages that tensors have used before come first; neighbours beyond them only where there are none.
  detail::FreePages take_pages(size_t most_bytes) {
    const std::lock_guard lock(mutex_);
    const size_t used_end = stats_.span_bytes / kHugePage * kHugePage;
    for (size_t pages = most_bytes / kHugePage; pages > 0; pages /= 2)
      if (const auto offset = blocks_.take(pages * kHugePage, kHugePage, used_end))
        return {taken_at(*offset, pages * kHugePage).data, pages * kHugePage};
    const auto offset = take_opened(most_bytes, kHugePage);
    return offset ? detail::FreePages{taken_at(*offset, most_bytes).data, most_bytes} : detail::FreePages{};
  }

  bool give(void* data) {
    const std::lock_guard lock(mutex_);
    auto* byte = static_cast<char*>(data);
    if (byte < base_ || byte >= base_ + bytes_) return false;
    const size_t offset = byte - base_;
    const auto block_bytes = static_cast<int64_t>(blocks_.taken_bytes(offset));
    stats_.used_bytes -= block_bytes;
    detail::count_memory(-block_bytes);
    blocks_.give(offset);
    return true;
  }

  // Whole huge pages only: the others would be split for the tensors that share them. Pages that the kernel
  // does not take (they may be locked in memory) keep their values, and so count as used before.
  void give_back() {
    const std::lock_guard lock(mutex_);
    const size_t span = stats_.span_bytes;
    for (const auto& [begin, bytes] : blocks_.gaps()) {
      const size_t first = round_up(begin, kHugePage),
                   last = std::min(begin + bytes, round_up(span, kHugePage)) / kHugePage * kHugePage;
      const bool is_gone = first >= last || madvise(base_ + first, last - first, MADV_DONTNEED) == 0;
      if (is_gone && begin + bytes >= span) stats_.span_bytes = static_cast<int64_t>(std::min(first, span));
    }
  }

  void reset_peak() {
    const std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.used_bytes;
  }

  CpuAllocatorStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  // A fork of another thread waits for the map to be whole, as it does for the C library's.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Taken {
    char* data;
    bool is_untouched;  // no tensor was there before: pages that the kernel will give as zeros
  };

  std::optional<Taken> take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto offset = take_opened(bytes, detail::BlockMap::kGrain);
    return offset ? std::optional(taken_at(*offset, bytes)) : std::nullopt;
  }

  Taken taken_at(size_t offset, size_t bytes) {
    const auto block_bytes = static_cast<int64_t>(blocks_.taken_bytes(offset));
    stats_.used_bytes += block_bytes;
    detail::count_memory(block_bytes);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.used_bytes);
    const bool is_untouched = static_cast<int64_t>(offset) >= stats_.span_bytes;
    stats_.span_bytes = std::max(stats_.span_bytes, static_cast<int64_t>(offset + bytes));
    return {base_ + offset, is_untouched};
  }

  std::optional<size_t> take_opened(size_t bytes, size_t alignment) {
    const auto offset = blocks_.take(bytes, alignment);
    if (!offset || open(*offset + bytes)) return offset;
    blocks_.give(*offset);
    return std::nullopt;
  }

  // Whether the range may be used up to `end`.
  bool open(size_t end) {
    if (end <= opened_) return true;
    const size_t wanted = std::min(round_up(end, kOpenedAtATime), bytes_);
    if (mprotect(base_ + opened_, wanted - opened_, PROT_READ | PROT_WRITE) != 0) return false;
    opened_ = wanted;
    return true;
  }

  static c10::DataPtr pointer_to(void* data) { return {data, data, &release, c10::Device(c10::kCPU)}; }

  static void release(void* data);

  const size_t bytes_;
  char* const base_;
  size_t opened_ = 0;  // from the beginning: may be read and written
  mutable std::mutex mutex_;
  detail::BlockMap blocks_;
  CpuAllocatorStats stats_;
};

// Null until use_training_allocator(); then it outlives every tensor.
TrainingAllocator* installed = nullptr;

void TrainingAllocator::release(void* data) {
  if (data != nullptr && !installed->give(data)) c10::GetDefaultCPUAllocator()->raw_deleter()(data);
}

}  // namespace

namespace detail {

at::Tensor zeros(int64_t numel, const at::TensorOptions& options) {
  if (installed == nullptr || !options.device().is_cpu()) return at::zeros({numel}, options);
  const size_t bytes = numel * options.dtype().itemsize();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, installed->allocate_zeros(bytes), installed,
                       /*resizable=*/false);
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKey::CPU, options.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  return tensor;
}

FreePages take_free_pages(size_t most_bytes) {
  TORCH_INTERNAL_ASSERT(installed != nullptr, "lent pages need use_training_allocator()");
  return installed->take_pages(most_bytes);
}

void give_free_pages(const FreePages& pages) { installed->give(pages.data); }

}  // namespace detail

bool use_training_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    const std::optional<Range> range = reserve_range();
    if (!range) return;
    auto allocator = std::make_unique<TrainingAllocator>(*range);
    pthread_atfork([] { installed->lock(); }, [] { installed->unlock(); }, [] { installed->unlock(); });
    installed = allocator.release();
    c10::SetCPUAllocator(installed, /*priority=*/1);
  });
  return installed != nullptr;
}

void release_free_memory() {
  if (installed != nullptr) installed->give_back();
}

void reset_cpu_allocator_peak() {
  if (installed != nullptr) installed->reset_peak();
}

CpuAllocatorStats cpu_allocator_stats() {
  return installed != nullptr ? installed->stats() : CpuAllocatorStats{};
}

bool keeps_freed_memory(c10::Device device) { return !device.is_cpu() || installed != nullptr; }

}  // namespace zero
