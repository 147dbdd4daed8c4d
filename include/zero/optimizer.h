#pragma once
// What updates parameters: one of our rules or any torch::optim optimizer, and the groups that get values of
// their own.

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "zero/optimizer_rules.h"
#include "zero/parameter_group.h"

namespace zero {

/// Any element-wise torch::optim optimizer. `make` is called once for every shard, so that scaled gradients
/// of one unit at a time are enough; it gets one group for the default and one for each ParameterGroup (some
/// may be empty), of flat 1-D fp32 leaves. An optimizer that needs a closure (LBFGS) is Unsupported.
struct TorchOptimizer {
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>
      make;
};

/// A second base class for an optimizer of your own that derives from torch::optim's Adam, AdamW, SGD,
/// RMSprop or Adagrad: says that it keeps for each parameter that class's state and nothing else. Its states
/// can then be saved, loaded and kept on a disk as those of that class.
struct KeepsBaseState {
  virtual ~KeepsBaseState() = default;
};

namespace detail {
template <class Rules, class... More>
struct ExtendedVariant;
template <class... Rules, class... More>
struct ExtendedVariant<std::variant<Rules...>, More...> {
  using type = std::variant<Rules..., More...>;
};
}  // namespace detail

/// One of the rules of optimizer_rules.h, as AdamW{.lr = 3e-4}, or a TorchOptimizer.
using OptimizerSpec = detail::ExtendedVariant<OptimizerRule, TorchOptimizer>::type;

/// Throws Config for a pattern with a [ that is never closed, and for a negative or non-finite rate, scale or
/// decay, naming the pattern.
void validate(std::span<const ParameterGroup> groups);

/// "AdamW", "TorchOptimizer", ...
std::string_view name_of(const OptimizerSpec& spec);

/// Throws Config for values out of range, naming each, and for a TorchOptimizer without `make`.
void validate(const OptimizerSpec& spec);

/// Base learning rate of the spec (of a TorchOptimizer: its first group's rate; calls `make` with one small
/// leaf).
double base_lr(const OptimizerSpec& spec);

/// Bytes of state per element beyond master and gradient. Nothing for a torch optimizer whose state is not
/// known.
std::optional<int64_t> optimizer_state_bytes(const OptimizerSpec& spec);

/// What clipping did: peers confuse these three, so all are returned.
struct ClipResult {
  double norm_before =
      0;  // global L2 norm of the averaged gradient; inf or NaN if a gradient is: the caller skips the step
  double coefficient =
      1;  // what every gradient was multiplied by: min(1, max_norm / (norm_before + 1e-6)), as torch
  double norm_after = 0;
};

}  // namespace zero
