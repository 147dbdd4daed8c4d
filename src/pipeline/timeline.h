#pragma once
// How long a pipeline's schedule takes and what its ranks keep.

#include <vector>

#include "pipeline/weaver.h"

namespace zero::pipeline {

struct Timeline {
  double duration = 0;  // from the first start to the last end
  // The longest of the ranks' own times from first start to last end: what a step costs where a rank goes on
  // to the next step by itself, as Qi et al. (arXiv 2401.10241) count.
  double cost = 0;
  double ideal = 0;                         // a rank's work without waiting
  double bubble = 0;                        // (cost - ideal) / cost
  std::vector<std::vector<double>> starts;  // as the table's rows
  std::vector<double> idle;                 // by rank, within its own time
  std::vector<double> peak_kept;  // by rank: micro-batches whose activations it keeps at most, all its chunks
};

/// Throws Internal for a table that check_table() refuses, Config for costs that Weaver refuses.
Timeline time_of(const Table& table, const StageCosts& costs);

}  // namespace zero::pipeline
