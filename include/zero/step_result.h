#pragma once

#include <memory>
#include <string>
#include <utility>

#include "zero/optimizer.h"

namespace zero {

namespace detail {
class StepOutcome;
}

/// What a step did. On a device the step is under way still: skipped() and clip() wait until the device has
/// summed up the gradients, unless it has, and the host goes on without asking otherwise. One thread at a
/// time.
class StepResult {
 public:
  StepResult() = default;
  StepResult(double lr, std::shared_ptr<detail::StepOutcome> outcome)
      : stepped(outcome != nullptr), lr(lr), outcome_(std::move(outcome)) {}

  bool stepped = false;   // false: not at an accumulation boundary yet, nothing happened
  double lr = 0;          // base rate used
  double loss_scale = 1;  // that this step's losses had

  /// The gradient was not finite: nothing changed but the gradients, which are gone.
  bool skipped() const;
  /// Where skipped(): the first parameter whose gradient was not finite and the first rank that had such an
  /// element of it, "NAME on rank R". Else, and on a device without loss scaling, "".
  std::string overflow() const;
  /// Norms of the averaged gradient before and after clipping.
  ClipResult clip() const;

 private:
  std::shared_ptr<detail::StepOutcome> outcome_;  // null where nothing happened
};

}  // namespace zero
