#pragma once
// The NCCL transport: collectives of device tensors on streams of their own.

#include <memory>

#include "mesh/nccl/library.h"
#include "mesh/transport.h"

namespace zero::detail {

/// Of options.device with the given NCCL. `is_watched`: a thread ends collectives that take longer than the
/// timeout; without one they are never ended (for devices on which asking for an event is an act of its own).
std::shared_ptr<Transport> make_nccl_transport(const TransportOptions& options, const nccl::Library& library,
                                               bool is_watched = true);

}  // namespace zero::detail
