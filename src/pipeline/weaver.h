#pragma once
// When each action of a pipeline can start, given those before it: the one arithmetic with which schedules
// are made, checked and timed.

#include <optional>
#include <vector>

#include "pipeline/table.h"

namespace zero::pipeline {

/// What one micro-batch costs on one rank, in any unit of time; a rank's chunks share it evenly. `transfer`
/// is the latency of a message between ranks, during which both may compute.
struct StageCosts {
  double forward = 1, backward_input = 1, backward_weight = 1, transfer = 0;
  // The share of a forward's activations that must stay until the weights' gradients are there.
  double weight_share = 1;

  /// Of a chunk's pass.
  double of(Pass pass, int chunks) const;
};

class Weaver {
 public:
  /// Throws Config for a cost below 0 or a share outside 0 to 1, and where check_shape() does.
  Weaver(const Shape& shape, const StageCosts& costs);

  /// When this rank could start the action at the earliest, its own being idle from free_at() on; nothing
  /// while something that it needs is not placed yet.
  std::optional<double> start_of(int rank, const Action& action) const;
  /// Puts it at the end of the rank's row. Throws Internal unless start_of() knows it, and for an action that
  /// is placed already.
  void place(int rank, const Action& action);

  /// How many micro-batches this pass of this chunk has behind it.
  int done(int rank, Pass pass, int chunk) const;
  double free_at(int rank) const { return ranks_[rank].free_at; }
  /// When its first action started.
  double began_at(int rank) const { return ranks_[rank].began_at; }
  /// Of its actions, in order.
  const std::vector<double>& starts(int rank) const { return ranks_[rank].starts; }
  double busy(int rank) const { return ranks_[rank].busy; }
  /// Micro-batches whose activations it keeps, all chunks together, now and at most.
  double kept(int rank) const { return ranks_[rank].kept; }
  double peak_kept(int rank) const { return ranks_[rank].peak_kept; }
  const Shape& shape() const { return shape_; }
  const Table& table() const { return table_; }

 private:
  struct Rank {
    double free_at = 0, began_at = 0, busy = 0, kept = 0, peak_kept = 0;
    std::vector<double> starts;
  };
  using Ends = std::vector<double>;  // of a pass, by stage and micro-batch; below 0: not placed

  double& end_of(Ends& ends, int stage, int micro_batch) { return ends[index(stage, micro_batch)]; }
  double end_of(const Ends& ends, int stage, int micro_batch) const {
    return ends[index(stage, micro_batch)];
  }
  int64_t index(int stage, int micro_batch) const {
    return int64_t{stage} * shape_.micro_batches + micro_batch;
  }
  std::optional<double> arrival(const Ends& ends, int from_stage, int micro_batch, int rank) const;
  void keep(Rank& rank, Pass pass);

  Shape shape_;
  StageCosts costs_;
  Table table_;
  std::vector<Rank> ranks_;
  Ends forward_, input_, weight_;
  std::vector<int> done_;  // by rank, pass, chunk
};

/// Places the whole table. Throws Internal where it does not come to an end or does not hold every pass once.
Weaver replay(const Table& table, const StageCosts& costs);

}  // namespace zero::pipeline
