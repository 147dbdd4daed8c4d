#include "train/checkpoint_metadata.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::training {
namespace {

using Json = nlohmann::ordered_json;

int64_t count(const Json& json, const char* key, const std::string& place) {
  const bool fits = json.contains(key) && json[key].is_number_unsigned() &&
                    json[key].get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  require(fits, ErrorKind::Corrupt, place, std::string("its metadata have no count \"") + key + "\"");
  return json[key].get<int64_t>();
}

}  // namespace

Config stored_form(Config config) {
  for (std::string* path : {&config.data.train, &config.data.eval, &config.data.tokenizer, &config.model.from,
                            &config.lora.from, &config.run.directory})
    if (!path->empty()) *path = std::filesystem::absolute(*path).lexically_normal().string();
  return config;
}

std::string to_text(const CheckpointMetadata& metadata) {
  const Json json = {
      {"step", metadata.step},
      {"position", metadata.position},
      {"tokens", metadata.tokens},
      {"evaluation_due", metadata.evaluation_due},
      {"vocabulary", {{"size", metadata.vocabulary.size}, {"fingerprint", metadata.vocabulary.fingerprint}}},
      {"config", Json::parse(to_json(stored_form(metadata.config)))}};
  return json.dump();
}

std::string origin_of_frozen(const Config& config) {
  if (!config.model.from.empty()) return "the model directory " + stored_form(config).model.from;
  return "the initial values of model.seed " + std::to_string(config.model.seed);
}

CheckpointMetadata read_metadata(const std::filesystem::path& checkpoint) {
  const std::string place = checkpoint.string();
  const Json all = Json::parse(CheckpointReader(checkpoint).metadata(), nullptr, false);
  const Json user = all.is_object() ? all.value("user", Json::object()) : Json::object();
  require(user.is_object() && user.contains("config") && user["config"].is_object(), ErrorKind::Config, place,
          "it holds no configuration: it was not written by `zero train`");
  CheckpointMetadata metadata{.step = count(user, "step", place),
                              .position = count(user, "position", place),
                              .tokens = count(user, "tokens", place)};
  metadata.evaluation_due = user.value("evaluation_due", Json(false)) == Json(true);
  const Json vocabulary = user.value("vocabulary", Json::object());
  require(vocabulary.is_object() && vocabulary.contains("fingerprint") &&
              vocabulary["fingerprint"].is_number_unsigned(),
          ErrorKind::Corrupt, place, "its metadata have no vocabulary");
  metadata.vocabulary = {.size = count(vocabulary, "size", place),
                         .fingerprint = vocabulary["fingerprint"].get<uint64_t>()};
  metadata.config = parse_config(user["config"].dump(), place);
  return metadata;
}

}  // namespace zero::training
