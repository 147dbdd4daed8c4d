#pragma once
// Where the ranks along "dp" are, on a mesh with more axes.

#include "zero/config.h"
#include "zero/plan.h"

namespace zero {

/// Of `ranks` in all, neighbours on `hosts`: which ranks of one "dp" group share memory. The rank along "tp"
/// varies fastest, then the one along "dp" (EngineOptions). Throws Config for ranks that `hosts` does not
/// divide.
RankPlaces dp_places_of(const Config& config, int ranks, int hosts, int cuda_devices);

}  // namespace zero
