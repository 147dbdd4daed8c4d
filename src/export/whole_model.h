#pragma once
// Whether a checkpoint holds the model that its configuration describes.

#include <string>

#include "export/frozen_files.h"
#include "zero/checkpoint.h"
#include "zero/plan.h"

namespace zero::exporting {

/// Throws Corrupt, with `place`, unless the checkpoint holds the parameters of `model`, its adapters
/// among them, and no others, each in its shape (adapters are compared with their weights when they are
/// merged). `frozen`: what it leaves out, or null.
void require_whole_model(const CheckpointReader& reader, const ModuleSpec& model, const FrozenFiles* frozen,
                         const std::string& place);

}  // namespace zero::exporting
