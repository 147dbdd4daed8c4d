#pragma once
// What `zero plan` says of a configured pipeline: each rank's stages, bytes and waiting.

#include <cstdint>
#include <string>
#include <vector>

#include "zero/activations.h"
#include "zero/axis_traffic.h"
#include "zero/config.h"
#include "zero/plan.h"

namespace zero {

/// One rank along the pipeline; those along "dp" at its place are alike.
struct PipelineRankPlan {
  std::vector<int> stages;  // that it holds
  bool has_first = false, has_last = false;
  int64_t blocks = 0, parameters = 0;  // parameters of its part, where ranks share layers
  Plan plan;                           // of its engine
  double kept_micro_batches = 0;       // whose activations it keeps at most
  ActivationBytes activations = {};    // of all of these
  double share = 0;                    // its operations, of all ranks' mean
  // Of a token's forward, of all ranks that share its layers: of products with weights, the head's among
  // them, and of attention.
  double product_flops = 0, score_flops = 0;
  TensorTraffic tensor;  // along "tp", of a step
  Moved messages;        // that it sends along "pp" in a step
  Moved tied;            // gradients of a tied embedding to the first stage, beside them
};

struct PipelinePlan {
  std::string model, schedule;
  int pipeline_ranks = 1, dp_ranks = 1, micro_batches = 1, stage = 0;
  LayerShare layers = {};  // along "tp"
  // Of a step, waiting for others: with equal stages, and with these, where the heaviest sets the pace.
  double bubble = 0, bubble_of_these = 0;
  std::vector<PipelineRankPlan> ranks;
};

/// `config` resolved for `ranks`; `model` its tree, `part` what the last rank along "tp" holds of it (the
/// tree itself where ranks share no layers). Without a pipeline there is one rank along it. Passes are taken
/// to last as long as their operations. Throws Config where stages do not fit the model.
PipelinePlan plan_pipeline(const Config& config, const ModuleSpec& model, const ModuleSpec& part, int ranks,
                           int hosts, int cuda_devices);

std::string to_text(const PipelinePlan& plan);
std::string to_json(const PipelinePlan& plan);

}  // namespace zero
