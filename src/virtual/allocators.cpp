// The allocators that LibTorch asks: of device tensors, of pinned tensors, and of CPU tensors, which are
// device memory while a thread computes a device's operator.
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "compute/memory_purpose.h"
#include "virtual/runtime.h"

namespace zero::virtual_device {
namespace {

void free_device_block(void* block) {
  auto& taken = *static_cast<Block*>(block);
  taken.machine->free(taken);
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = this_thread().device;
    if (bytes == 0) return {nullptr, device_at(device)};
    return device_pointer(machine().take(current_clock(device), bytes, detail::memory_purpose()));
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    Machine& owner = machine();
    Arena &target = *owner.arena_of_name(to), &source = *owner.arena_of_name(from);
    if (target.block_at(to).has_values && source.block_at(from).has_values)
      std::memcpy(target.work_at(to), source.work_at(from), bytes);
  }
};

// The context is the data pointer itself and the deleter finds the block: oneDNN's scratch memory comes
// through raw_allocate() and raw_deallocate(), which ask for just that.
void free_kernel_memory(void* data) {
  if (data == nullptr) return;
  if (Machine* owner = machine_of_work(data)) return owner->free(owner->arena_of_work(data)->block_at(data));
  host_allocator().raw_deleter()(data);
}

class KernelAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    static const std::string& kWorkspace = *new std::string("workspace");
    const Stamp* kernel = this_thread().kernel;
    if (kernel == nullptr || bytes == 0) return host_allocator().allocate(bytes);
    Machine& owner = machine();
    const std::lock_guard lock(owner.mutex());
    Block& block = owner.take(kernel->clock, bytes, kWorkspace);
    owner.note({&block, Region(0, bytes), nullptr}, /*is_write=*/true, *kernel);
    char* data = block.arena->work_at(block.arena->name_of(block));
    return {data, data, &free_kernel_memory, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free_kernel_memory; }

  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

void free_pinned_block(void* block) {
  auto& taken = *static_cast<Block*>(block);
  taken.machine->free_pinned(taken);
}

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    Block& block = machine().take_pinned(bytes);
    return {block.host, &block, &free_pinned_block, c10::Device(c10::kCPU)};
  }

  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

}  // namespace

c10::Allocator& device_allocator() {
  static auto* const allocator = new DeviceAllocator;
  return *allocator;
}

c10::Allocator& kernel_allocator() {
  static auto* const allocator = new KernelAllocator;
  return *allocator;
}

c10::Allocator& pinned_allocator() {
  static auto* const allocator = new PinnedAllocator;
  return *allocator;
}

c10::DataPtr device_pointer(Block& block) {
  return {block.arena->name_of(block), &block, &free_device_block, device_at(block.arena->device())};
}

Block* block_of(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  if (data.get_deleter() == &free_device_block) return static_cast<Block*>(data.get_context());
  if (data.get() == nullptr) return nullptr;
  Machine& owner = machine();  // somebody else's pointer to our memory
  const std::lock_guard lock(owner.mutex());
  Arena* arena = owner.arena_of_name(data.get());
  return arena != nullptr ? &arena->block_at(data.get()) : nullptr;
}

Block* adopt_kernel_memory(c10::DataPtr& data) {
  if (data.get_deleter() != &free_kernel_memory) return nullptr;
  Machine* owner = machine_of_work(data.get_context());
  if (owner == nullptr) return nullptr;
  const std::lock_guard lock(owner->mutex());
  void* work = data.release_context();
  Arena& arena = *owner->arena_of_work(work);
  Block& block = arena.block_at(work);
  arena.relabel(block, detail::memory_purpose());
  return &block;
}

}  // namespace zero::virtual_device
