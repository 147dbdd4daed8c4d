#include "train/adapter_files.h"

#include "base/output_file.h"
#include "hf/adapter.h"
#include "train/checkpoint_metadata.h"
#include "zero/error.h"
#include "zero/model_spec.h"

namespace zero::training {
namespace {

void collect_adapters(const ModuleSpec& module, std::vector<ParameterSpec>& adapters) {
  for (const ParameterSpec& parameter : module.parameters)
    if (hf::is_adapter(parameter.name)) adapters.push_back(parameter);
  for (const ModuleSpec& child : module.children) collect_adapters(child, adapters);
}

}  // namespace

void write_adapters(const std::filesystem::path& directory, const Config& config,
                    const std::map<std::string, std::vector<float>>& values) {
  std::vector<ParameterSpec> adapters;
  collect_adapters(trained_spec(config), adapters);
  std::vector<hf::NewTensor> tensors;
  std::vector<std::string> names;
  std::string data;
  for (const ParameterSpec& adapter : adapters) {
    const std::vector<float>& numbers = values.at(adapter.name);
    tensors.push_back({hf::peft_name(config.model, adapter.name), Dtype::f32, adapter.shape});
    names.push_back(adapter.name);
    data.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  }
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  require(!error, ErrorKind::Io, directory.string(), "cannot create it: " + error.message());
  replace_file(directory / (std::string(hf::kAdapterWeights) + ".safetensors"),
               hf::safetensors_header(tensors) + data);
  replace_file(directory / hf::kAdapterConfig,
               hf::adapter_config_text(config.model, config.lora, names, stored_form(config).model.from));
}

}  // namespace zero::training
