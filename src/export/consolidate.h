#pragma once
// zero::consolidate() for a caller that knows the trees of models.

#include <filesystem>
#include <functional>

#include "zero/config.h"
#include "zero/consolidate.h"
#include "zero/plan.h"

namespace zero::exporting {

/// `spec_of`: the tree of a configured model, which a checkpoint with a configuration must be of.
Consolidated consolidate(const std::filesystem::path& checkpoint, const std::filesystem::path& out,
                         const ConsolidateOptions& options,
                         const std::function<ModuleSpec(const Config&)>& spec_of);

}  // namespace zero::exporting
