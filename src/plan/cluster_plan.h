#pragma once
// A configuration on a described cluster: memory, time by part, tokens a second.

#include <cstdint>
#include <string>

#include "plan/cluster.h"
#include "plan/pipeline_plan.h"
#include "plan/step_time.h"
#include "zero/config.h"
#include "zero/plan.h"

namespace zero {

/// What a run of these settings takes.
struct ClusterPrediction {
  Config config;  // resolved for the cluster's devices
  StepLayout layout;
  int64_t peak_bytes = 0;                                           // of the rank with the most
  int peak_rank = 0;                                                // along the pipeline
  int64_t state_bytes = 0, activation_bytes = 0, memory_bytes = 0;  // of that rank; a device has memory_bytes
  StepTime time;
  bool fits() const { return peak_bytes <= memory_bytes; }
};

/// The part of `cluster` that so many ranks take: whole hosts, or devices of one. Throws Config for more
/// ranks than devices, and for several hosts that they do not fill.
Cluster part_of(Cluster cluster, int ranks);

/// How the configured ranks are laid out: on CPU where the cluster's share memory, else on CUDA devices.
StepLayout layout_of(const Config& config, int ranks);

/// The work of one rank of a plan, `config` resolved for `ranks`. `heaviest`: of all ranks' mean, what the
/// heaviest has.
StepWork work_of(const Config& config, const PipelineRankPlan& rank, int ranks, double heaviest);

/// `config` resolved for all of the cluster's devices; `model` its tree, `part` that of the last rank along
/// "tp". The schedule is played. Throws Config where ranks of one layer would be on several hosts,
/// Unsupported for states outside the devices.
ClusterPrediction predict(const Config& config, const ModuleSpec& model, const ModuleSpec& part,
                          const Cluster& cluster);

std::string to_text(const ClusterPrediction& prediction, const Cluster& cluster);
std::string to_json(const ClusterPrediction& prediction, const Cluster& cluster);

}  // namespace zero
