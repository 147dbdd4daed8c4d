#pragma once
// What a step found out, which on a device the host learns after it has gone on.

#include <ATen/core/Tensor.h>

#include <string>

#include "compute/host_copies.h"
#include "zero/optimizer.h"

namespace zero::detail {

/// Not thread safe.
class StepOutcome {
 public:
  /// `sums`: AxesAgreement::add_up's.
  StepOutcome(const at::Tensor& sums, double max_norm) : copy_(sums), max_norm_(max_norm) {}

  /// They, on the host. Waits for the device only where it has not come so far.
  const at::Tensor& sums() { return copy_.values(); }
  ClipResult clip();
  /// The gradient was not finite.
  bool skipped();
  /// StepResult::overflow's.
  std::string overflow;

 private:
  HostCopy copy_;
  double max_norm_;
};

}  // namespace zero::detail
