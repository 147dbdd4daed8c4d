#pragma once
// The best settings of a model on a described cluster.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "plan/cluster_plan.h"
#include "zero/plan_report.h"

namespace zero {

/// A search over ranks along "dp", "tp" and "pp", stage, schedule, chunks, micro-batch and recomputation, for
/// the configuration's train_batch_size.
struct ClusterSearch {
  // At most ten, the fastest first: of each mesh and stage the fastest that fits and that this version runs.
  std::vector<ClusterPrediction> best;
  int64_t considered = 0, too_large = 0;
  // Settings that were faster and are refused by this version, and why, each reason once.
  std::vector<std::string> refused;
};

/// `config` as it was read, its model adopted. Candidates are ranked by formulas; those that are told of have
/// their schedules played and their plans made. Deterministic. Throws Config without a train_batch_size.
ClusterSearch search_cluster(const Config& config, const ModuleSpec& model, const PartOf& part_of,
                             const Cluster& cluster);

/// The keys of a configuration that make it these settings, as JSON to paste.
std::string keys_of(const ClusterPrediction& prediction);

std::string to_text(const ClusterSearch& search, const Cluster& cluster);
std::string to_json(const ClusterSearch& search, const Cluster& cluster);

}  // namespace zero
