#pragma once
// Which rank counts which elements in sums over all ranks, where several hold the same.

#include <cstdint>
#include <span>
#include <vector>

#include "optim/shard_optimizer.h"
#include "sharding/axes_agreement.h"

namespace zero::detail {

/// Each element of `shards` counts on one of `replicas`, whose ranks hold the same. With `cut_numel`, per
/// shard, rank r counts elements [r * cut_numel, (r + 1) * cut_numel) of each; without, the first rank counts
/// all.
void share_out_among_replicas(std::span<OptimizerShard> shards, const Group& replicas,
                              std::span<const int64_t> cut_numel);

/// Of what ranks along other axes than "dp" hold alike, the first one counts. Returns the same shards,
/// counting only what is left out of `shards` so.
std::vector<OptimizerShard> leave_out_copies(std::span<OptimizerShard> shards, const AxesAgreement& axes);

}  // namespace zero::detail
