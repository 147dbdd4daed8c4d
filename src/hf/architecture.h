#pragma once
// What one architecture looks like in Hugging Face's files. One file an architecture, a line in
// architecture.cpp.

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zero/config_sections.h"

namespace zero::hf {

/// Reads the members of a config.json and collects what is wrong with them.
class ConfigReader {
 public:
  explicit ConfigReader(const nlohmann::json& json) : json_(json) {}

  /// A whole number >= 1. Without a default it must be there; null counts as not there.
  int64_t count(const std::string& key, std::optional<int64_t> otherwise = {});
  double positive(const std::string& key, std::optional<double> otherwise = {});
  bool flag(const std::string& key, bool otherwise);
  std::string text(const std::string& key, const std::string& otherwise);
  /// What the library does: any value but these is a problem. Not there counts as the first.
  void only(const std::string& key, const std::vector<nlohmann::json>& accepted);
  /// The object under `key`; nullptr where there is none or null.
  const nlohmann::json* object(const std::string& key);
  void problem(const std::string& key, const std::string& expected);
  /// Takes over the problems of the object under `key`.
  void add(const std::string& key, const ConfigReader& inner);

  const std::vector<std::string>& problems() const { return problems_; }

 private:
  const nlohmann::json* find(const std::string& key) const;

  const nlohmann::json& json_;
  std::vector<std::string> problems_;
};

struct Architecture {
  std::string_view type;        // model_type of config.json, model.type of our configuration
  std::string_view class_name;  // of the language model, for "architectures"
  std::string_view prefix;      // of the names inside the bare model; its own files leave it out
  /// Fills in the shape.
  void (*read)(ConfigReader& reader, ModelConfig& model);
  /// What read() reads, and what transformers needs beside it.
  nlohmann::ordered_json (*write)(const ModelConfig& model);
  std::string (*hf_name)(std::string_view own_name);
  /// Tensors that files hold although they are no parameters: masks, tables, a head that is tied.
  bool (*ignored)(std::string_view hf_name, const ModelConfig& model);
};

extern const Architecture kGpt2, kLlama, kGptNeox;

/// nullptr for an unknown type.
const Architecture* find_architecture(std::string_view type);
/// "gpt2, llama, ..."
std::string architecture_names();

}  // namespace zero::hf
