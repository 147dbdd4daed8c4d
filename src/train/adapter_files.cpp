#include "train/adapter_files.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "base/output_file.h"
#include "hf/adapter.h"
#include "mesh/agree.h"
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

std::map<std::string, std::vector<float>> joined_along_pipeline(
    const Mesh& mesh, std::map<std::string, std::vector<float>> values) {
  const auto axes = mesh.axes();
  if (std::none_of(axes.begin(), axes.end(),
                   [](const Axis& axis) { return axis.name == "pp" && axis.size > 1; }))
    return values;
  // A line for each, its name and its number of elements, and behind all lines the elements.
  std::string lines, numbers;
  for (const auto& [name, held] : values) {
    lines += name + " " + std::to_string(held.size()) + "\n";
    numbers.append(reinterpret_cast<const char*>(held.data()), held.size() * sizeof(float));
  }
  const Group pipeline = mesh.group("pp");
  const auto all_lines = detail::gather_text(mesh, pipeline, lines, "adapters"),
             all_numbers = detail::gather_text(mesh, pipeline, numbers, "adapters");
  for (size_t rank = 0; rank < all_lines.size(); ++rank) {
    std::istringstream text(all_lines[rank]);
    std::string name;
    size_t at = 0;
    for (size_t numel = 0; text >> name >> numel; at += numel * sizeof(float)) {
      std::vector<float>& held = values[name];
      held.resize(numel);
      std::memcpy(held.data(), all_numbers[rank].data() + at, numel * sizeof(float));
    }
  }
  return values;
}

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
