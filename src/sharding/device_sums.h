#pragma once
// Sums of gradients that a device keeps while something is added to them, and the host or a disk in between.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optim/host_tier.h"
#include "optim/state_store.h"

namespace zero::detail {

/// Of one kind. Not thread safe.
class DeviceSums {
 public:
  /// One unit's sum: elements, and where they are in between.
  struct Place {
    int unit = 0;
    int64_t numel = 0;
    Tier tier = Tier::Host;
  };
  /// Elements of options.dtype() on options.device(). The sums are states in `states`, in memory of its
  /// host() or on its disk: whoever borrows them waits until they have come.
  DeviceSums(StateStore& states, std::string_view kind, std::span<const Place> places,
             const at::TensorOptions& options);

  bool has(int unit) const;
  /// Device memory for the unit's sum: with its values, where it has some.
  at::Tensor take(int unit);
  /// The sum goes to the host and its memory after it, when the current stream is behind the copy. The host
  /// does not wait, but for earlier ones that are to be written to a disk.
  void put(int unit, const at::Tensor& sum);
  /// The sums have no values any more.
  void discard();

 private:
  struct Sum {
    int64_t numel = -1;       // none
    at::Tensor on_host;       // for good; undefined where it goes to a disk
    StateStore::Lease lease;  // of what is on a disk, from when it comes to when it has gone
    bool has_values = false, is_taken = false;
    Transfer arrival;

    bool is_on_disk() const { return !on_host.defined(); }
  };
  struct Leaving {
    at::Tensor memory;
    Transfer arrival;
    size_t unit;
  };
  void let_go_of_oldest();
  void write(Sum& sum);
  at::Tensor memory_of(size_t unit);

  StateStore& states_;
  HostTier& host_;
  std::string kind_;
  at::TensorOptions options_;
  std::vector<Sum> sums_;  // by unit
  int64_t largest_bytes_ = 0, leaving_bytes_ = 0;
  std::deque<Leaving> leaving_;  // oldest first
};

}  // namespace zero::detail
