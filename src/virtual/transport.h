#pragma once
// Collectives between the virtual devices of several processes, for MeshOptions::own_transport. As on a GPU
// they run on a stream of their own, after what the current stream was given, and waiting for one makes the
// current stream wait. Bytes travel through host memory by the transports of CPU tensors, and the ranks'
// simulated clocks with them: a collective begins when the last rank is ready.

#include <memory>

#include "mesh/transport.h"

namespace zero::virtual_device {

/// Of options.device, a virtual one. How long a collective takes is said in virtual/network.h: collectives of
/// one group take their turn, and so do those of all groups of a rank on its connection.
std::shared_ptr<detail::Transport> make_virtual_transport(const detail::TransportOptions& options);
/// The same; bytes and clocks travel by `inner`, which moves tensors of the host.
std::shared_ptr<detail::Transport> make_virtual_transport_over(std::shared_ptr<detail::Transport> inner,
                                                               const detail::TransportOptions& options);

}  // namespace zero::virtual_device
