#pragma once
// Tables of a run for people: where steps' time went, what memory holds, what was sent. DeepSpeed's
// wall_clock_breakdown, memory_breakdown and comms_logger.

#include <cstdint>
#include <string>

#include "zero/config.h"
#include "zero/mesh.h"
#include "zero/train.h"

namespace zero::training {

/// Adds up steps between two lines of progress.
class Breakdown {
 public:
  explicit Breakdown(const LoggingConfig& logging) : logging_(logging) {}
  void add(const StepReport& report);
  /// The tables of the steps since the last call that the configuration asks for, each line without its end;
  /// "" where none is.
  std::string tables(const StepReport& last);

 private:
  std::string times() const;

  LoggingConfig logging_;
  int64_t steps_ = 0;
  double forward_s_ = 0, backward_s_ = 0, optimizer_s_ = 0, waited_s_ = 0, step_s_ = 0;
};

/// Memory of rank 0 by purpose and tier.
std::string memory_table(const StepReport& report);

/// What this rank's groups were asked to move since the mesh was made: calls, elements and bytes by axis and
/// operation, and bytes a step.
std::string traffic_table(const Mesh& mesh, int64_t steps);

}  // namespace zero::training
