#pragma once
// What torch::optim's optimizers keep for each leaf. LibTorch has no common way to ask, so each type is known
// by name.

#include <torch/optim/optimizer.h>

#include <optional>
#include <string>
#include <vector>

namespace zero {

/// The state tensors' names, in slot order; nothing for a type this version does not know. All groups must
/// agree on them.
std::optional<std::vector<std::string>> torch_state_names(const torch::optim::Optimizer& optimizer);

/// The C++ type's name, for messages.
std::string torch_type_name(const torch::optim::Optimizer& optimizer);

/// Replaces the rate's companions in the options: false if the type has no such option (or is not known).
bool set_weight_decay(torch::optim::OptimizerOptions& options, double weight_decay);
bool set_betas(torch::optim::OptimizerOptions& options, double beta1, double beta2);

/// Makes the leaf's state tensors the given views (one for each name): what the optimizer made for itself is
/// copied into them first. Nothing happens if it has no state for the leaf yet.
void adopt_state(torch::optim::Optimizer& optimizer, const at::Tensor& leaf,
                 const std::vector<at::Tensor>& views);

/// Gives the leaf the state of `steps` steps in `views`; 0 steps: as if it had never been updated.
void restore_state(torch::optim::Optimizer& optimizer, const at::Tensor& leaf,
                   const std::vector<at::Tensor>& views, int64_t steps);

}  // namespace zero
