#include "virtual/runtime.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "zero/error.h"

namespace zero::virtual_device {
namespace {

// All that registrations keep: never destroyed, for tensors and threads may outlive everything else.
struct Registered {
  std::mutex mutex;
  std::atomic<Machine*> current = nullptr;
  std::unique_ptr<Machine> owned;
  std::vector<std::unique_ptr<Machine>> retired;
  c10::Allocator* host = nullptr;
};

Registered& registered() {
  static auto* const state = new Registered;
  return *state;
}

}  // namespace

ThreadState& this_thread() {
  thread_local ThreadState state;
  return state;
}

void install(std::unique_ptr<Machine> machine) {
  Registered& state = registered();
  const std::lock_guard lock(state.mutex);
  require(state.owned == nullptr, ErrorKind::Usage, "VirtualDevices", "there are virtual devices already",
          "destroy those first: a process has one set at a time");
  static const bool is_registered = [] {
    c10::register_privateuse1_backend("virtual");
    register_hooks();
    register_kernels();
    register_recurrent_kernels();
    register_dropout();
    return true;
  }();
  (void)is_registered;
  catch_host_accesses();
  state.host = c10::GetAllocator(c10::kCPU);
  c10::SetAllocator(c10::kCPU, &kernel_allocator(), 255);
  c10::SetAllocator(kVirtual, &device_allocator(), 255);
  state.owned = std::move(machine);
  state.current = state.owned.get();
  this_thread() = {};
}

void uninstall() {
  Registered& state = registered();
  const std::lock_guard lock(state.mutex);
  state.owned->synchronize_all();
  state.current = nullptr;
  c10::SetAllocator(c10::kCPU, state.host, 255);
  if (state.owned->blocks_in_use() > 0) {
    state.retired.push_back(std::move(state.owned));
  } else {
    state.owned = nullptr;
  }
}

Machine* installed_machine() { return registered().current.load(std::memory_order_acquire); }

Machine& machine() {
  Machine* found = installed_machine();
  require(found != nullptr, ErrorKind::Usage, "virtual device", "there are no virtual devices now",
          "make zero::virtual_device::VirtualDevices, and keep it as long as its tensors");
  return *found;
}

Machine* machine_of_work(const void* address) {
  Registered& state = registered();
  if (Machine* current = installed_machine();
      current != nullptr && current->arena_of_work(address) != nullptr)
    return current;
  const std::lock_guard lock(state.mutex);
  for (const auto& retired : state.retired)
    if (retired->arena_of_work(address) != nullptr) return retired.get();
  return nullptr;
}

c10::Allocator& host_allocator() { return *registered().host; }

}  // namespace zero::virtual_device
