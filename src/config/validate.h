#pragma once
// Checks that need more than one key.

#include "config/problems.h"
#include "zero/config.h"

namespace zero::config {

inline constexpr double kWarmupDecayMaxLr = 0.001;  // DeepSpeed's default of WarmupDecayLR's warmup_max_lr

/// Whether a schedule ends at total_steps: Linear, Cosine, Polynomial, CosineRestarts, WarmupStableDecay.
bool decays_to_total(SchedulerConfig::Type type);

/// Adds a problem for every contradiction between keys.
void validate(const Config& config, Problems& problems);

/// Fills in the values that follow from other keys, whatever the number of ranks.
void derive(Config& config);

}  // namespace zero::config
