#pragma once
// Low-rank adapters in PEFT's layout: adapter_config.json and adapter_model.safetensors.

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hf/model_directory.h"
#include "zero/config_sections.h"

namespace zero::hf {

inline constexpr const char* kAdapterWeights = "adapter_model";
inline constexpr const char* kAdapterConfig = "adapter_config.json";

/// True for a parameter of an adapter: "h.0.attn.c_attn.lora_A.weight".
bool is_adapter(std::string_view own_name);

/// True where linear weights are [in, out] (PEFT: fan_in_fan_out).
bool weights_are_in_out(const ModelConfig& model);

/// PEFT's name of it: "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight".
std::string peft_name(const ModelConfig& model, std::string_view own_name);

/// The text of an adapter_config.json. `names`: our names of all adapter parameters; `base`: where the model
/// is.
std::string adapter_config_text(const ModelConfig& model, const LoraConfig& lora,
                                std::span<const std::string> names, const std::string& base);

/// Throws Config where the adapter in `directory` is not of lora's rank and alpha, Unsupported for what PEFT
/// can do and this version does not; all problems in one error.
void check_adapter(const std::filesystem::path& directory, const LoraConfig& lora);

/// As match(), for the tensors of an adapter.
std::map<std::string, std::string> match_adapter(const Weights& weights, const ModelConfig& model,
                                                 std::span<const WantedTensor> wanted);

}  // namespace zero::hf
