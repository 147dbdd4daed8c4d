#pragma once
// What of a step crosses the network between hosts.

#include "zero/plan.h"

namespace zero {

/// Fills in plan.network, where there are several hosts. Throws Config where it exceeds 2^63 bytes.
void add_network_traffic(Plan& plan, const RankPlaces& places);

}  // namespace zero
