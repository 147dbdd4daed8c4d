#pragma once
// A model directory of Hugging Face's: its config.json, and which stored tensor is which parameter.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hf/weights.h"
#include "zero/config_sections.h"

namespace zero::hf {

/// What a model directory says of making text with it, where it says so.
inline constexpr const char* kGenerationConfig = "generation_config.json";

/// True where `directory` holds a config.json with a model_type.
bool is_model_directory(const std::filesystem::path& directory);

/// The architecture and shape that DIRECTORY/config.json describes; dropout and seed stay as in `others`.
/// Throws Config where there is no such file, Corrupt for one that is no JSON object, and Unsupported for an
/// unknown architecture or for what this version does not do, all problems in one error.
ModelConfig read_model_config(const std::filesystem::path& directory, const ModelConfig& others = {});

/// The tokens that end a text: eos_token_id, an id or a list of ids, of generation_config.json, or of
/// config.json where that file is not there or names none. Throws Corrupt for a value that is none of these.
std::vector<int64_t> read_end_tokens(const std::filesystem::path& directory);

/// What a config.json says of special tokens: its members "eos_token_id", "bos_token_id", "pad_token_id" and
/// others so named, each an id, a list of ids, or null, as JSON.
using SpecialIds = std::map<std::string, std::string>;

/// Throws Corrupt for a value that is none of these.
SpecialIds read_special_ids(const std::filesystem::path& directory);

/// Of a vocabulary in which one token begins and ends a text.
SpecialIds begin_and_end(int64_t token);

/// The text of a config.json that transformers opens; `dtype` is that of the weights. Throws Unsupported for
/// a model type that has no counterpart there.
std::string config_text(const ModelConfig& model, Dtype dtype, const SpecialIds& ids = {});

/// The name in Hugging Face's files of a parameter of ours; the axes are the same, nothing is transposed.
/// Throws Unsupported as config_text.
std::string hf_name(const ModelConfig& model, std::string_view own_name);

/// A parameter that a model has.
struct WantedTensor {
  std::string name;  // ours
  std::vector<int64_t> shape;
};

/// Throws Config with everything that is wrong, in one error: stored tensors that are missing, not wanted
/// (unless `ignored`), of another shape or of a type that is not read. `names`: of the stored tensor for each
/// wanted one.
void require_match(const Weights& weights, std::span<const WantedTensor> wanted,
                   const std::map<std::string, std::string>& names,
                   const std::function<bool(const std::string& stored_name)>& ignored);

/// The stored tensor's name for every wanted one. Throws Config with all that is missing, not the model's, of
/// another shape or of a type that is not read, in one error.
std::map<std::string, std::string> match(const Weights& weights, const ModelConfig& model,
                                         std::span<const WantedTensor> wanted);

}  // namespace zero::hf
