#include "zero/hf_model.h"

#include <nlohmann/json.hpp>

#include "hf/model_directory.h"
#include "zero/error.h"

namespace zero {
namespace {

using Json = nlohmann::json;

Json model_json(const ModelConfig& model) {
  Config config;
  config.model = model;
  return Json::parse(to_json(config)).at("model");
}

// What was given beside `from` and is not so there.
std::string disagreements(const Config& config, const ModelConfig& found) {
  const Json given = model_json(config.model), there = model_json(found);
  std::string text;
  const auto compare = [&](const auto& self, const std::string& path, const Json& ours,
                           const Json& theirs) -> void {
    for (const auto& [key, value] : ours.items()) {
      const std::string full = path + "." + key;
      const Json other = theirs.contains(key) ? theirs.at(key) : Json();
      if (value.is_object()) {
        self(self, full, value, other.is_object() ? other : Json::object());
      } else if (config.origin.places.contains(full) && value != other) {
        text += (text.empty() ? "" : ", ") + full + " is " + other.dump() + " there and " + value.dump() +
                " here";
      }
    }
  };
  compare(compare, "model", given, there);
  return text;
}

}  // namespace

Config adopt_model(Config config) {
  if (config.model.from.empty()) return config;
  ModelConfig found = hf::read_model_config(config.model.from, config.model);
  found.from = config.model.from;
  const std::string wrong = disagreements(config, found);
  require(wrong.empty(), ErrorKind::Config, config.place("model"), wrong,
          "leave out what " + (std::filesystem::path(config.model.from) / "config.json").string() + " says");
  require(found.type == "gpt2" || found.dropout == 0, ErrorKind::Config, config.place("model.dropout"),
          "model.dropout: expected 0, as a " + found.type + " has none");
  config.model = found;
  require(config.data.sequence_length <= found.context_length, ErrorKind::Config,
          config.place("data.sequence_length"),
          "data.sequence_length: expected at most model.context_length " +
              std::to_string(found.context_length) + ", got " + std::to_string(config.data.sequence_length));
  // Later readings of this configuration check the shape as if it had been given.
  config.origin.places.emplace("model.context_length", config.place("model.from"));
  return config;
}

bool is_hf_directory(const std::filesystem::path& directory) { return hf::is_model_directory(directory); }

}  // namespace zero
