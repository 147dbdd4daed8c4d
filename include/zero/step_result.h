#pragma once

#include "zero/optimizer.h"

namespace zero {

/// What a step did.
struct StepResult {
  bool stepped = false;  // false: not at an accumulation boundary yet, nothing happened
  bool skipped = false;  // the gradient was not finite: nothing changed but the gradients, which are gone
  double lr = 0;         // base rate used
  ClipResult clip;       // norms of the averaged gradient before and after clipping
};

}  // namespace zero
