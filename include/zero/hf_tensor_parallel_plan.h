#pragma once
// Hugging Face's tensor-parallel plans (config.json's base_model_tp_plan), for modules of one's own whose
// parameters have the names of transformers' model. Our own models bring their plans (language_model_plan.h).

#include <string>
#include <string_view>

#include "zero/tensor_parallel.h"

namespace zero {

struct HfTensorParallelPlanOptions {
  std::string prefix = {};  // before the plan's names in the module's: "model." of a base model
  std::string place = "base_model_tp_plan";  // stands in errors
};

/// The plan of a JSON object name -> word, or of a config.json with such an object as "base_model_tp_plan",
/// for a module: a rule for each parameter that it names, or whose module it names, where numbers in names
/// are "*", as transformers matches them. A rowwise module's bias is added once and gets none; "rowwise" of a
/// torch::nn::Embedding is "vocab". Throws Corrupt for what is no such JSON; Config for words that are none
/// here, by name, with those that are (those of experts are not), and for names that the module has not.
TensorParallelPlan hf_tensor_parallel_plan(std::string_view json, const torch::nn::Module& module,
                                           const HfTensorParallelPlanOptions& options = {});

}  // namespace zero
