#pragma once
// What all collectives begin with: checks of their tensors, then a transfer.

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/group_state.h"
#include "zero/mesh.h"

namespace zero::detail {

/// Throws Usage, naming the operation, `what` and the group, for arguments that do not fit.
struct CollectiveCheck {
  const GroupState& group;
  Operation operation;
  std::string_view what;

  [[noreturn]] void refuse(const std::string& problem) const;
  /// Defined, contiguous, on the mesh's device.
  void tensor(const at::Tensor& t, const char* name) const;
  void numel(const at::Tensor& t, const char* name, int64_t expected, const std::string& reason) const;
  void same_dtype(const at::Tensor& out, const at::Tensor& in) const;
  void member(int rank, const char* name) const;
};

/// The contiguous tensor as a 1-D one without a graph.
at::Tensor flat_view(const at::Tensor& tensor);

/// Begins a transfer; `finish` is what is left to do once its bytes are there.
Work start_transfer(const std::shared_ptr<GroupState>& group, Issued issued,
                    const std::function<std::unique_ptr<Transfer>(Channel&)>& begin,
                    std::function<void()> finish = nullptr);

/// One call that moves a full tensor so many times.
Traffic traffic_of(const at::Tensor& full, int64_t times = 1);

/// After an exchange of `in` [size * n]: every rank's part [n] for this one, its own taken from where it was.
std::vector<at::Tensor> received_parts(const at::Tensor& received, const at::Tensor& in,
                                       const GroupState& group);

}  // namespace zero::detail
