#pragma once
// The other ranks of a job, where only one rank is there: they are taken to do and send what this one does.

#include <memory>

#include "mesh/transport.h"

namespace zero::simulate {

/// Moves tensors of the host. Whatever another rank sends is what this one sends at that moment; from a
/// broadcast or a receive the tensor is left as it is. So checks that ranks agree pass, and sums over ranks
/// are this rank's times their number. Ranks are on hosts of `ranks_per_host` neighbours.
std::shared_ptr<detail::Transport> make_imagined_ranks(int ranks_per_host);

}  // namespace zero::simulate
