#include "zero/cpu_allocator.h"

#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/block_map.h"
#include "base/checked.h"
#include "compute/lent_pages.h"
#include "compute/zeros.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr size_t kSmallest = 32 << 10;
constexpr size_t kHugePage = detail::kLentPageBytes;

class TrainingAllocator final : public c10::Allocator {
 public:
  TrainingAllocator() : bytes_(reserve_bytes()), base_(reserve(bytes_)), blocks_(bytes_) {}

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes < kSmallest) return c10::GetDefaultCPUAllocator()->allocate(bytes);
    return pointer_to(take(bytes).data);
  }

  c10::DataPtr allocate_zeros(size_t bytes) {
    if (bytes < kSmallest) {
      c10::DataPtr memory = c10::GetDefaultCPUAllocator()->allocate(bytes);
      if (bytes > 0) std::memset(memory.get(), 0, bytes);
      return memory;
    }
    const Taken taken = take(bytes);
    if (!taken.is_untouched) std::memset(taken.data, 0, bytes);
    return pointer_to(taken.data);
  }

  // Tensors of both kinds go back through the deleter that knows them; a bare pointer is looked at.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  // Pages that tensors have used before come first; neighbours beyond them only where there are none.
  detail::FreePages take_pages(size_t most_bytes) {
    const std::lock_guard lock(mutex_);
    const auto used_end = static_cast<size_t>(stats_.span_bytes) / kHugePage * kHugePage;
    for (size_t pages = most_bytes / kHugePage; pages > 0; pages /= 2)
      if (const auto offset = blocks_.take(pages * kHugePage, kHugePage, used_end))
        return {taken_at(*offset, pages * kHugePage).data, pages * kHugePage};
    const auto offset = blocks_.take(most_bytes, kHugePage);
    TORCH_CHECK(offset, "out of memory: ", most_bytes, " bytes find no place");
    return {taken_at(*offset, most_bytes).data, most_bytes};
  }

  bool give(void* data) {
    const std::lock_guard lock(mutex_);
    auto* byte = static_cast<char*>(data);
    if (byte < base_ || byte >= base_ + bytes_) return false;
    const auto offset = static_cast<size_t>(byte - base_);
    stats_.used_bytes -= blocks_.taken_bytes(offset);
    blocks_.give(offset);
    return true;
  }

  // Whole huge pages only: the others would be split for the tensors that share them.
  void give_back() {
    const std::lock_guard lock(mutex_);
    const auto span = static_cast<size_t>(stats_.span_bytes);
    for (const auto& [begin, bytes] : blocks_.gaps()) {
      const size_t first = round_up(begin, kHugePage),
                   last = std::min(begin + bytes, round_up(span, kHugePage)) / kHugePage * kHugePage;
      if (first < last) madvise(base_ + first, last - first, MADV_DONTNEED);
      if (begin + bytes >= span) stats_.span_bytes = static_cast<int64_t>(std::min(first, span));
    }
  }

  CpuAllocatorStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  static TrainingAllocator& instance() {
    static auto* allocator = new TrainingAllocator();  // outlives every tensor
    return *allocator;
  }

 private:
  static size_t reserve_bytes() {
    const auto physical =
        static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return 2 * physical / kHugePage * kHugePage;
  }

  static char* reserve(size_t bytes) {
    void* range = mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    require(range != MAP_FAILED, ErrorKind::Io, "training allocator",
            "cannot reserve " + std::to_string(bytes) + " bytes of addresses: " + std::strerror(errno),
            "raise the limit on address space, or leave the allocator out");
    auto begin = (reinterpret_cast<uintptr_t>(range) + kHugePage - 1) / kHugePage * kHugePage;
    madvise(reinterpret_cast<void*>(begin), bytes, MADV_HUGEPAGE);  // a wish: kernels may be built without
    return reinterpret_cast<char*>(begin);
  }

  struct Taken {
    char* data;
    bool is_untouched;  // no tensor was there before: pages that the kernel will give as zeros
  };

  Taken take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto offset = blocks_.take(bytes);
    TORCH_CHECK(offset, "out of memory: a tensor of ", bytes, " bytes finds no place");
    return taken_at(*offset, bytes);
  }

  Taken taken_at(size_t offset, size_t bytes) {
    stats_.used_bytes += blocks_.taken_bytes(offset);
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.used_bytes);
    const bool is_untouched = static_cast<int64_t>(offset) >= stats_.span_bytes;
    stats_.span_bytes = std::max(stats_.span_bytes, static_cast<int64_t>(offset + bytes));
    return {base_ + offset, is_untouched};
  }

  static c10::DataPtr pointer_to(void* data) { return {data, data, &release, c10::Device(c10::kCPU)}; }

  static void release(void* data) {
    if (data != nullptr && !instance().give(data)) c10::GetDefaultCPUAllocator()->raw_deleter()(data);
  }

  const size_t bytes_;
  char* const base_;
  mutable std::mutex mutex_;
  detail::BlockMap blocks_;
  CpuAllocatorStats stats_;
};

bool installed = false;

}  // namespace

namespace detail {

at::Tensor zeros(int64_t numel, const at::TensorOptions& options) {
  if (!installed || !options.device().is_cpu()) return at::zeros({numel}, options);
  const size_t bytes = static_cast<size_t>(numel) * options.dtype().itemsize();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       TrainingAllocator::instance().allocate_zeros(bytes), &TrainingAllocator::instance(),
                       /*resizable=*/false);
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKey::CPU, options.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  return tensor;
}

FreePages take_free_pages(size_t most_bytes) {
  TORCH_INTERNAL_ASSERT(installed, "lent pages need use_training_allocator()");
  return TrainingAllocator::instance().take_pages(most_bytes);
}

void give_free_pages(const FreePages& pages) { TrainingAllocator::instance().give(pages.data); }

}  // namespace detail

void use_training_allocator() {
  static std::once_flag once;
  std::call_once(once, [] {
    c10::SetCPUAllocator(&TrainingAllocator::instance(), /*priority=*/1);
    installed = true;
  });
}

void release_free_memory() {
  if (installed) TrainingAllocator::instance().give_back();
}

CpuAllocatorStats cpu_allocator_stats() {
  return installed ? TrainingAllocator::instance().stats() : CpuAllocatorStats{};
}

bool keeps_freed_memory(c10::Device device) { return device.is_cuda() || (device.is_cpu() && installed); }

}  // namespace zero
