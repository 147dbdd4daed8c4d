#pragma once
// What a pipeline's rank keeps of activations while it goes through its row of a table. Numbers only.

#include <cstdint>
#include <vector>

#include "pipeline/table.h"

namespace zero {

/// Of one micro-batch.
struct StageActivations {
  std::vector<double> kept;  // by stage: from its forward to its backward, its result too
  double message = 0;        // bytes of what goes from stage to stage
  double after_loss = 0;     // what the last stage's loss keeps, once it is there
};

/// By rank, the most that it keeps behind a forward (before a loss), in bytes, with messages that it cannot
/// know to have been taken: it lets go of them when it gets what the receiver made later (stages/messages.h).
/// Of a table whose backwards are whole.
std::vector<double> most_kept(const pipeline::Table& table, const StageActivations& bytes);

}  // namespace zero
