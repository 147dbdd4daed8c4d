#pragma once
// Sums of gradients that a device keeps while something is added to them, and the host in between.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "optim/host_tier.h"
#include "optim/state_store.h"

namespace zero::detail {

/// Of one kind. Not thread safe.
class DeviceSums {
 public:
  /// `units` and the `numels` of their sums, elements of options.dtype() on options.device(). They are states
  /// in `states`, in memory of its host(): whoever borrows them waits until they have come.
  DeviceSums(StateStore& states, std::string_view kind, std::span<const int> units,
             std::span<const int64_t> numels, const at::TensorOptions& options);

  bool has(int unit) const;
  /// Device memory for the unit's sum: with its values, where it has some.
  at::Tensor take(int unit);
  /// The sum goes to the host and its memory after it, when the current stream is behind the copy. The host
  /// does not wait.
  void put(int unit, const at::Tensor& sum);
  /// The sums have no values any more.
  void discard();

 private:
  struct Sum {
    at::Tensor on_host;
    bool has_values = false;
    Transfer arrival;
  };
  struct Leaving {
    at::Tensor memory;
    Transfer arrival;
  };
  void let_go_of_oldest();

  HostTier& host_;
  at::TensorOptions options_;
  std::vector<Sum> sums_;  // by unit
  int64_t largest_bytes_ = 0, leaving_bytes_ = 0;
  std::deque<Leaving> leaving_;  // oldest first
};

}  // namespace zero::detail
