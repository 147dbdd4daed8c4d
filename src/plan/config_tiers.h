#pragma once
// What a configuration leaves open of where states are ("auto"), chosen.

#include <optional>

#include "zero/config.h"
#include "zero/tier_plan.h"

namespace zero {

/// The kinds that are "auto", within the budgets of `offload`. None where there are none. `options`: those of
/// the configuration. Throws as choose_tiers() does, with the place of the key.
std::optional<TierPlan> choose_config_tiers(const Config& config, const ModuleSpec& model,
                                            const EngineOptions& options, const RankPlaces& places,
                                            const TierMachine& machine);

/// What it asks for.
TierRequest config_tier_request(const Config& config, const EngineOptions& options,
                                const TierMachine& machine);

}  // namespace zero
