#pragma once
// Frozen parameters that a checkpoint leaves out: what it remembers of their values, so that they can be told
// from others.

#include <cstdint>
#include <map>
#include <string>

#include "engine/engine_state.h"

namespace zero::detail {

/// True for a part of a frozen parameter's values.
bool is_frozen(const EngineState& state, const std::string& part_name);

/// A number that follows from a parameter's values and their places.
uint64_t frozen_fingerprint(const at::Tensor& values);

/// That of each frozen parameter, whatever ranks share them. Collective.
std::map<std::string, uint64_t> frozen_fingerprints(EngineState& state);

}  // namespace zero::detail
