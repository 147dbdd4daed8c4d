#pragma once
// A pipeline's stages of a whole forward.

#include <memory>
#include <vector>

#include "suspend/forward.h"
#include "zero/engine_options.h"
#include "zero/mesh.h"
#include "zero/pipeline.h"

namespace zero::detail {

/// `stages`: of the pipeline. Throws Unsupported for options that a suspended forward does not have.
std::unique_ptr<SuspendedForward> suspended_forward(const torch::nn::Module& module,
                                                    const WholeForward& forward, const PipelineUnits& units,
                                                    int stages, const EngineOptions& options,
                                                    const Mesh& mesh);

/// They call `suspended`, which must outlive them.
std::vector<PipelineStage> stages_of_suspended(SuspendedForward& suspended);

/// begin() of a pipeline's; throws Usage for a pipeline of functions (null).
SuspendedForward& begun(SuspendedForward* suspended, const WholeForward& forward,
                        const PipelineOptions& options, bool any_shape = false);

/// Throws Usage where stages of a whole forward (null: there are none) have not begun.
void require_begun(const SuspendedForward* suspended);

}  // namespace zero::detail
