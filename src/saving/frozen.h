#pragma once
// What a checkpoint that leaves frozen parameters out remembers of them (checkpoint/left_out.h).

#include <cstdint>
#include <map>
#include <string>

#include "sharding/sharded_model.h"

namespace zero::detail {

/// True for a part of a frozen parameter's values.
bool is_frozen(const ShardedModel& model, const std::string& part_name);

/// checkpoint::fingerprint_of() a whole parameter.
uint64_t frozen_fingerprint(const at::Tensor& values);

/// That of each frozen parameter, whatever ranks share them. Collective.
std::map<std::string, uint64_t> frozen_fingerprints(ShardedModel& model);

}  // namespace zero::detail
