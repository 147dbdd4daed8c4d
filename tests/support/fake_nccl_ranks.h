#pragma once
// Ranks on virtual devices that talk by the NCCL transport over a libnccl of our own (support/fake_nccl.h),
// which tells the virtual device what it touches on which stream.

#include <dlfcn.h>

#include <string>

#include "mesh/nccl/nccl.h"
#include "support/fake_nccl.h"
#include "support/virtual_ranks.h"
#include "virtual/runtime.h"

namespace zero::virtual_device::testing {

/// A function of the library by its name.
template <class Function>
Function* fake_nccl(const char* name) {
  static void* const library = dlopen(ZERO_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  auto* const found = reinterpret_cast<Function*>(dlsym(library, name));
  EXPECT_NE(found, nullptr) << name;
  return found;
}

/// The calls since the last time, a line each.
inline std::string nccl_calls() { return fake_nccl<FakeNcclLog>("fake_nccl_log")(); }

inline void* work_address(const void* name) {
  Arena* arena = machine().arena_of_name(name);
  EXPECT_NE(arena, nullptr) << "NCCL was given memory that is no device's";
  return arena->work_at(name);
}

// As a kernel on that stream; what it is not ordered after is a fault.
inline void note_touch(const void* name, size_t bytes, bool is_write, void* stream, const char* function) {
  Machine& owner = machine();
  const std::lock_guard lock(owner.mutex());
  Block& block = owner.arena_of_name(name)->block_at(name);
  const auto begin = static_cast<size_t>(static_cast<const char*>(name) - block.arena->name_of(block));
  const Touch touch{&block, Region(begin, begin + bytes), nullptr};
  const Stamp at = owner.launch(static_cast<int>(reinterpret_cast<intptr_t>(stream)), function);
  if (!is_write) owner.require_written(touch, at);
  owner.note(touch, is_write, at);
  if (is_write) owner.note_written(touch);
}

/// A virtual device's time passes only where somebody asks for it, so nobody watches unless `is_watched`.
inline zero::testing::RankOptions on_fake_nccl(Communication communication = Communication::exact,
                                               bool is_watched = false) {
  zero::testing::RankOptions options;
  options.mesh.device = c10::Device(c10::DeviceType::PrivateUse1, 0);
  options.mesh.communication = communication;
  options.mesh.own_transport = [is_watched](const detail::TransportOptions& transport) {
    own_devices();
    fake_nccl<FakeNcclHook>("fake_nccl_hook")({work_address, note_touch});
    return detail::make_nccl_transport(transport, detail::nccl::load_library(ZERO_FAKE_NCCL), is_watched);
  };
  return options;
}

}  // namespace zero::virtual_device::testing
