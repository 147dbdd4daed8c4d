#pragma once
// A group whose members are on several hosts, some on the same: shared memory inside a host, the network
// between hosts. Parameters cross it once for each host, and so do gradients (base/host_routes.h).

#include <memory>
#include <vector>

#include "mesh/transport.h"

namespace zero::detail {

/// `inside` connects the members of this rank's host, and is null where there is one; `across` connects all
/// members, this rank being number `rank` of them. hosts[r]: of member r.
std::unique_ptr<Channel> make_hosts_channel(std::unique_ptr<Channel> inside, std::unique_ptr<Channel> across,
                                            int rank, const std::vector<int>& hosts,
                                            Communication communication);

}  // namespace zero::detail
