#include "train/checkpoint_metadata.h"

#include <nlohmann/json.hpp>

#include "base/strict_json.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero::training {
namespace {

using Json = nlohmann::ordered_json;

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
  const nlohmann::json all = parse_json(CheckpointReader(checkpoint).metadata(), place + ": metadata");
  const JsonPlace user = JsonPlace(all, place + ": metadata")["user"];
  require(user.is_object() && user["config"].is_object(), ErrorKind::Config, place,
          "it holds no configuration: it was not written by `zero train`");
  const JsonPlace vocabulary = user["vocabulary"];
  return {
      .step = user["step"].count(),
      .position = user["position"].count(),
      .tokens = user["tokens"].count(),
      .evaluation_due = user["evaluation_due"].boolean_or(false),
      .vocabulary = {.size = vocabulary["size"].count(), .fingerprint = vocabulary["fingerprint"].uint64()},
      .config = parse_config(user["config"].value().dump(), place)};
}

}  // namespace zero::training
