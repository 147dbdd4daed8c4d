#pragma once
// What a device's states need of the host: memory of its own, the way there, and pinned memory through which
// pieces of what stays on the device pass.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "compute/host_link.h"
#include "compute/host_memory.h"

namespace zero {

struct HostTier {
  HostTier(c10::Device device, int64_t bytes, bool pinned, int64_t piece_elements, int buffer_count)
      : memory(bytes, pinned),
        link(device),
        piece_numel(piece_elements),
        slots(static_cast<size_t>(buffer_count)) {}

  detail::HostMemory memory;  // of Tier::Host's states
  detail::HostLink link;
  int64_t piece_numel;  // elements of a unit that the CPU updates at a time

  /// Memory of one piece on its way.
  struct Slot {
    at::Tensor bytes;          // pinned; as large as the largest piece so far
    detail::Transfer uploads;  // that read it
  };
  std::vector<Slot> slots;
};

}  // namespace zero
