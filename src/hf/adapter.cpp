#include "hf/adapter.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/strict_json.h"
#include "checkpoint/file_io.h"
#include "hf/architecture.h"
#include "zero/error.h"

namespace zero::hf {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int64_t kMostAdapterConfigBytes = 10'000'000;
constexpr std::string_view kPeftPrefix = "base_model.model.";

}  // namespace

bool is_adapter(std::string_view own_name) {
  return own_name.ends_with(".lora_A.weight") || own_name.ends_with(".lora_B.weight");
}

bool weights_are_in_out(const ModelConfig& model) { return model.type == "gpt2"; }

std::string peft_name(const ModelConfig& model, std::string_view own_name) {
  return std::string(kPeftPrefix) + hf_name(model, own_name);
}

std::string adapter_config_text(const ModelConfig& model, const LoraConfig& lora,
                                std::span<const std::string> names, const std::string& base) {
  // Full names of layers: a pattern of ours need not be one of PEFT's.
  std::set<std::string> layers;
  for (const std::string& name : names) {
    const std::string full = hf_name(model, name);
    layers.insert(full.substr(0, full.rfind(".lora_")));
  }
  const ordered_json json = {{"peft_type", "LORA"},
                             {"task_type", "CAUSAL_LM"},
                             {"base_model_name_or_path", base.empty() ? ordered_json() : ordered_json(base)},
                             {"r", lora.rank},
                             {"lora_alpha", lora.alpha},
                             {"lora_dropout", 0.0},
                             {"target_modules", layers},
                             {"bias", "none"},
                             {"fan_in_fan_out", weights_are_in_out(model)},
                             {"inference_mode", true}};
  return json.dump(2) + "\n";
}

void check_adapter(const fs::path& directory, const LoraConfig& lora) {
  const fs::path path = directory / kAdapterConfig;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  require(!error, ErrorKind::Config, directory.string(), std::string("there is no ") + kAdapterConfig,
          "name a directory that PEFT has saved an adapter in");
  const nlohmann::json json = parse_json(checkpoint::read_text(real, kMostAdapterConfigBytes), path.string());
  JsonPlace(json, path.string()).require_object();
  ConfigReader reader(json);
  reader.only("peft_type", {"LORA"});
  reader.only("bias", {"none"});
  for (const char* key : {"use_rslora", "use_dora", "lora_bias"}) reader.only(key, {false});
  for (const char* key : {"rank_pattern", "alpha_pattern"}) reader.only(key, {nlohmann::json::object()});
  for (const char* key : {"modules_to_save", "layers_to_transform"}) reader.only(key, {nullptr});
  if (reader.count("r") != lora.rank) reader.problem("r", "lora.rank " + std::to_string(lora.rank));
  if (reader.positive("lora_alpha") != lora.alpha)
    reader.problem("lora_alpha", "lora.alpha " + nlohmann::json(lora.alpha).dump());
  std::string text;
  for (const std::string& problem : reader.problems()) text += (text.empty() ? "" : ", ") + problem;
  require(text.empty(), ErrorKind::Config, path.string(), text);
}

std::map<std::string, std::string> match_adapter(const Weights& weights, const ModelConfig& model,
                                                 std::span<const WantedTensor> wanted) {
  std::map<std::string, std::string> names;
  for (const WantedTensor& tensor : wanted) names[tensor.name] = peft_name(model, tensor.name);
  require_match(weights, wanted, names, [](const std::string&) { return false; });
  return names;
}

}  // namespace zero::hf
