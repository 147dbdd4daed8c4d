#pragma once
// Which of a module's parameters a pipeline's rank holds, and which of them others hold too.

#include <map>
#include <string>
#include <vector>

#include "pipeline/table.h"
#include "sharding/model_parameters.h"
#include "zero/parameter_part.h"
#include "zero/pipeline.h"

namespace zero::detail {

/// A parameter of several stages.
struct TiedParameter {
  std::string name;         // the first in module order
  std::vector<int> stages;  // that use it, ascending: at least two
};

struct StageParameters {
  ModelParameters held;                        // of this rank's stages
  std::map<std::string, ParameterPart> parts;  // of those, for EngineOptions
  std::vector<TiedParameter> tied;             // of all stages, in module order: the same on all ranks
};

/// What `rank` of the pipeline holds of `module`, with all buffers. `replicated_over`:
/// axes beside "dp" and "pp" that are larger than 1, along which all ranks hold the same. `parts`: what is
/// known of some parameters already. Throws Config for a pattern that matches nothing and for a parameter
/// that no stage uses.
StageParameters parameters_of_stages(const torch::nn::Module& module,
                                     const std::vector<PipelineStage>& stages, const pipeline::Shape& shape,
                                     int rank, const std::vector<std::string>& replicated_over,
                                     const std::map<std::string, ParameterPart>& parts);

}  // namespace zero::detail
