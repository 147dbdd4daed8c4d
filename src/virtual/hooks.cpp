// Generators, pinned memory and storages of virtual devices, as LibTorch's hooks want them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "virtual/runtime.h"

namespace zero::virtual_device {
namespace {

// Draws from a CPU generator, so that a seed gives what the same seed gives on a CPU.
class VirtualGenerator final : public c10::GeneratorImpl {
 public:
  explicit VirtualGenerator(int device)
      : GeneratorImpl(device_at(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        cpu_(at::detail::createCPUGenerator()) {}

  void set_current_seed(uint64_t seed) override { cpu_.set_current_seed(seed); }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override { return cpu_.seed(); }
  void set_offset(uint64_t offset) override { cpu_.set_offset(offset); }
  uint64_t get_offset() const override { return cpu_.get_offset(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return cpu_.unsafeGetGeneratorImpl()->get_state();
  }
  const at::Generator& cpu() const { return cpu_; }

 private:
  VirtualGenerator* clone_impl() const override {
    auto* copy = new VirtualGenerator(device().index());
    copy->cpu_ = cpu_.clone();
    return copy;
  }
  at::Generator cpu_;
};

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return installed_machine() != nullptr; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return isAvailable(); }

  c10::DeviceIndex deviceCount() const override {
    Machine* found = installed_machine();
    return found != nullptr ? static_cast<c10::DeviceIndex>(found->device_count()) : c10::DeviceIndex{0};
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { this_thread().device = device; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(this_thread().device);
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(std::exchange(this_thread().device, device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? getCurrentDevice() : exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device < 0 ? this_thread().device : device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return make_generator(device < 0 ? this_thread().device : device);
  }

  at::Device getDeviceFromPtr(void* data) const override {
    Arena* arena = machine().arena_of_name(data);
    TORCH_CHECK(arena != nullptr, "not a pointer of a virtual device");
    return device_at(arena->device());
  }
  bool isPinnedPtr(const void* data) const override {
    Machine* found = installed_machine();
    return found != nullptr && found->pinned_block(data) != nullptr;
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::StorageImpl& target = *storage.unsafeGetStorageImpl();
    c10::DataPtr data = device_allocator().allocate(bytes);
    Block *from = block_of(target), *to = bytes > 0 ? static_cast<Block*>(data.get_context()) : nullptr;
    const size_t kept = std::min(bytes, target.nbytes());
    if (kept > 0 && from != nullptr && to != nullptr) {
      Machine& owner = machine();
      const Stamp at = owner.launch(current_clock(storage.device().index()), "storage resize");
      device_allocator().copy_data(data.get(), target._mutable_data_ptr_no_checks().get(), kept);
      owner.note({from, Region(0, kept), nullptr}, false, at);
      owner.note({to, Region(0, kept), nullptr}, true, at);
      to->written = from->written;
      to->written.cut(kept);
    }
    target.set_data_ptr_noswap(std::move(data));
    target.set_nbytes(bytes);
  }
};

}  // namespace

const at::Generator& default_generator(int device) {
  static auto* const generators = [] {
    auto* made = new std::vector<at::Generator>;
    for (int index = 0; index < kMostDevices; ++index) made->push_back(make_generator(index));
    return made;
  }();
  return generators->at(static_cast<size_t>(device));
}

at::Generator make_generator(int device) { return at::make_generator<VirtualGenerator>(device); }

at::Generator cpu_generator_of(const at::Generator& generator) {
  return static_cast<VirtualGenerator*>(generator.unsafeGetGeneratorImpl())->cpu();
}

void register_hooks() {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
}

}  // namespace zero::virtual_device
