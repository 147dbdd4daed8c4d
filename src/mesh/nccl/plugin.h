#pragma once
// What the library and the NCCL plugin agree on.

#include <memory>

#include "mesh/transport.h"

namespace zero::detail {

constexpr const char* kNcclPlugin = "libzero_nccl.so";
/// The number changes whenever transport.h does: a plugin of another version is then not taken.
constexpr const char* kNcclFactory = "zero_nccl_transport_1";
using NcclFactory = void(const TransportOptions* options, std::shared_ptr<Transport>* result);

}  // namespace zero::detail
