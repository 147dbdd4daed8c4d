#include "stages/suspended_stages.h"

#include <utility>

#include "plan/stage_balance.h"
#include "zero/error.h"
#include "zero/torch_dtype.h"

namespace zero::detail {

std::unique_ptr<SuspendedForward> suspended_forward(const torch::nn::Module& module,
                                                    const WholeForward& forward, const PipelineUnits& units,
                                                    int stages, const EngineOptions& options,
                                                    const Mesh& mesh) {
  require(forward != nullptr, ErrorKind::Config, "pipeline", "it has no forward");
  require(!options.around_forward, ErrorKind::Unsupported, "pipeline",
          "a suspended forward does not know of tensor-parallel parameters", "give the stages as functions");
  const auto counts = [&](const std::vector<double>& costs) {
    return units.counts.empty() ? balance_stages({.first = 0, .last = 0, .blocks = costs}, stages)
                                : units.counts;
  };
  auto suspended =
      std::make_unique<SuspendedForward>(module, forward, units.patterns,
                                         /*by_hand=*/!units.patterns.empty(), counts, stages, mesh.device());
  const auto buffers = options.buffer_dtype ? options.buffer_dtype : options.dtype;
  const auto dtype_of = [](const std::optional<DtypeOption>& option) {
    return option ? std::optional(scalar_type_of(*option)) : std::nullopt;
  };
  suspended->set_dtypes(dtype_of(options.dtype), dtype_of(buffers));
  return suspended;
}

std::vector<PipelineStage> stages_of_suspended(SuspendedForward& suspended) {
  std::vector<PipelineStage> stages;
  for (const std::vector<std::string>& names : suspended.names_of_stages()) {
    const int stage = static_cast<int>(stages.size());
    stages.push_back({names, [&suspended, stage](const StageTensors& inputs, int index) {
                        return suspended.run(stage, inputs, index);
                      }});
  }
  return stages;
}

SuspendedForward& begun(SuspendedForward* suspended, const WholeForward& forward,
                        const PipelineOptions& options, bool any_shape) {
  require(suspended != nullptr, ErrorKind::Usage, "pipeline", "its stages are functions, no whole forward",
          "call train(), evaluate() and infer() with the input");
  suspended->begin(forward, options.seed.has_value(), any_shape);
  return *suspended;
}

void require_begun(const SuspendedForward* suspended) {
  require(suspended == nullptr || suspended->has_begun(), ErrorKind::Usage, "pipeline",
          "its stages have no forward",
          "call train(), evaluate() and infer() with a function as the pipeline was made of");
}

}  // namespace zero::detail
