#pragma once
// What LibTorch knows of the virtual devices. Its registrations are for the whole process and cannot be taken
// back, so what they need stands here, behind functions: the machine of the moment, and each thread's current
// device and streams.

#include <ATen/core/Generator.h>
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "virtual/machine.h"

namespace zero::virtual_device {

constexpr c10::DeviceType kVirtual = c10::DeviceType::PrivateUse1;

struct ThreadState {
  int device = 0;
  std::array<int, kMostDevices> streams{};
  const Stamp* kernel = nullptr;  // the operator that this thread computes: its CPU tensors are device memory
  const char* last_work = "";
};
ThreadState& this_thread();

inline c10::Device device_at(int device) { return {kVirtual, static_cast<c10::DeviceIndex>(device)}; }
inline int index_of(c10::Device device) { return device.has_index() ? device.index() : this_thread().device; }
/// The clock of the thread's current stream on that device.
inline int current_clock(int device) { return clock_of(device, this_thread().streams[device]); }
inline int clock_of(const c10::Stream& stream) {
  return clock_of(stream.device_index(), static_cast<int>(stream.id()));
}

/// Registers with LibTorch, once, and makes `machine` the one that devices belong to. Throws Usage where
/// there is one already.
void install(std::unique_ptr<Machine> machine);
/// Devices are gone; the machine lives on while tensors hold memory of it.
void uninstall();
/// The installed machine. Throws Usage where there is none.
Machine& machine();
/// The same, or null.
Machine* installed_machine();
/// The machine, retired ones included, that has this work address; or null.
Machine* machine_of_work(const void* address);

c10::Allocator& device_allocator();
c10::Allocator& pinned_allocator();
/// Replaces the allocator of CPU tensors while a machine is installed: operators under way get device memory.
c10::Allocator& kernel_allocator();
/// Host tensors' allocator without us.
c10::Allocator& host_allocator();

/// The block of a storage on a virtual device; null where it has none.
Block* block_of(c10::StorageImpl& storage);
c10::DataPtr device_pointer(Block& block);
/// Takes the block of memory that a kernel allocated; null where other allocators made it, then `data` stays.
Block* adopt_kernel_memory(c10::DataPtr& data);

/// The device's default generator.
const at::Generator& default_generator(int device);
/// The CPU generator that a device's generator draws from: equal seeds give equal numbers.
at::Generator cpu_generator_of(const at::Generator& generator);
at::Generator make_generator(int device);

/// For the modules of this folder: each registers its part once.
void register_hooks();
void register_kernels();
void register_recurrent_kernels();
void register_dropout();
void catch_host_accesses();

}  // namespace zero::virtual_device
