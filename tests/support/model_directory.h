#pragma once
// Model directories of Hugging Face's with made-up weights, which follow from the names alone.

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hf/model_directory.h"
#include "support/golden_gpt2.h"
#include "support/safetensors_files.h"
#include "support/temporary_directory.h"
#include "zero/model_spec.h"

namespace zero::testing {

inline void collect_tensors(const ModuleSpec& module, const ModelConfig& model,
                            std::vector<FileTensor>& tensors) {
  for (const ParameterSpec& parameter : module.parameters) {
    const at::Tensor value = golden::initial_value(parameter.name, parameter.shape).contiguous();
    const float* first = value.const_data_ptr<float>();
    tensors.push_back(file_tensor(hf::hf_name(model, parameter.name), Dtype::f32, parameter.shape,
                                  std::vector<float>(first, first + value.numel())));
  }
  for (const ModuleSpec& child : module.children) collect_tensors(child, model, tensors);
}

/// Writes config.json and model.safetensors. `change` may spoil the tensors first.
inline std::filesystem::path write_model_directory(
    const TemporaryDirectory& directory, const std::string& name, const std::string& model_section,
    const std::function<void(std::vector<FileTensor>&)>& change = {}) {
  const Config config = parse_config("{\"train_batch_size\": 1, \"model\": " + model_section + "}");
  std::vector<FileTensor> tensors;
  collect_tensors(model_spec(shape_of(config)), config.model, tensors);
  if (change) change(tensors);
  directory.write(name + "/config.json", hf::config_text(config.model, Dtype::f32, hf::begin_and_end(63)));
  return directory.write(name + "/model.safetensors", safetensors_bytes(tensors)).parent_path();
}

/// Models of each architecture for the tokens of SmallRun.
inline const std::map<std::string, std::string> kSmallModels{
    {"gpt2", R"({"vocab_size": 64, "context_length": 8, "layers": 2, "width": 16, "heads": 2})"},
    {"llama",
     R"({"type": "llama", "vocab_size": 64, "context_length": 8, "layers": 2, "width": 16, "heads": 4,
                  "kv_heads": 2, "mlp_width": 24})"},
    {"neox",
     R"({"type": "gpt_neox", "vocab_size": 64, "context_length": 8, "layers": 2, "width": 16, "heads": 2,
                 "mlp_width": 24})"}};

}  // namespace zero::testing
