#pragma once
// A module as the engine sees it: its tree as plain data for the plan, and its tensors by parameter.

#include <torch/types.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "zero/plan.h"
#include "zero/torch_dtype.h"

namespace torch::nn {
class Module;
}
namespace torch::jit {
struct Module;
}

namespace zero::detail {

struct ModelParameters {
  ModuleSpec spec;
  // Every tensor object that stands for a parameter, by each of its names. Tied names lead to the same
  // objects.
  std::unordered_map<std::string, std::vector<at::Tensor>> tensors;
  std::vector<std::pair<std::string, at::Tensor>> buffers;  // distinct, in module order
};

/// Throws Unsupported, naming both, for parameters whose memory overlaps without being the same tensor.
ModelParameters parameters_of(const torch::nn::Module& module);
ModelParameters parameters_of(const torch::jit::Module& module);

/// A flat list of parameters, as an optimizer gets them, with their names.
ModelParameters parameters_of(const std::vector<std::pair<std::string, at::Tensor>>& named);

}  // namespace zero::detail
