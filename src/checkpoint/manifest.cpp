// ShardManifest as text, as it travels to rank 0.
#include "checkpoint/index.h"

namespace zero {

std::string to_text(const ShardManifest& manifest) {
  using checkpoint::Json;
  Json tensors = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) tensors[name] = checkpoint::to_json(tensor);
  return Json{{"file", manifest.file}, {"file_bytes", manifest.file_bytes}, {"tensors", std::move(tensors)}}
      .dump();
}

ShardManifest manifest_from_text(std::string_view text) {
  using namespace checkpoint;
  constexpr std::string_view kPlace = "shard manifest";
  const Json document = parse_json(text, kPlace);
  const JsonPlace json(document, std::string(kPlace));
  ShardManifest manifest{
      .file = json["file"].string(), .file_bytes = json["file_bytes"].count(), .tensors = {}};
  require(is_plain_name(manifest.file), ErrorKind::Corrupt, kPlace,
          in_quotes(manifest.file) + " is not a plain file name");
  for (const auto& [name, tensor] : json["tensors"].members())
    manifest.tensors.emplace(name, tensor_from_json(tensor));
  return manifest;
}

}  // namespace zero
