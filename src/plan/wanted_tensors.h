#pragma once
// What a model's files must hold.

#include <vector>

#include "hf/model_directory.h"
#include "zero/plan.h"

namespace zero {

/// The parameters of a module tree: the model's own, or those of its low-rank adapters.
std::vector<hf::WantedTensor> wanted_tensors(const ModuleSpec& module, bool adapters);

}  // namespace zero
