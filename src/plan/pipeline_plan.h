#pragma once
// What `zero plan` says of a configured pipeline: each rank's stages, bytes and waiting.

#include <cstdint>
#include <string>
#include <vector>

#include "zero/activations.h"
#include "zero/config.h"
#include "zero/plan.h"

namespace zero {

/// One rank along the pipeline; those along "dp" at its place are alike.
struct PipelineRankPlan {
  std::vector<int> stages;  // that it holds
  int64_t blocks = 0, parameters = 0;
  Plan plan;                         // of its engine
  double kept_micro_batches = 0;     // whose activations it keeps at most
  ActivationBytes activations = {};  // of all of these
  double share = 0;                  // its operations, of all ranks' mean
};

struct PipelinePlan {
  std::string model, schedule;
  int pipeline_ranks = 1, dp_ranks = 1, micro_batches = 1, stage = 0;
  // Of a step, waiting for others: with equal stages, and with these, where the heaviest sets the pace.
  double bubble = 0, bubble_of_these = 0;
  std::vector<PipelineRankPlan> ranks;
};

/// `config` resolved for `ranks`; `model` its tree. Passes are taken to last as long as their operations.
/// Throws Config where stages do not fit the model.
PipelinePlan plan_pipeline(const Config& config, const ModuleSpec& model, int ranks, int hosts,
                           int cuda_devices);

std::string to_text(const PipelinePlan& plan);
std::string to_json(const PipelinePlan& plan);

}  // namespace zero
