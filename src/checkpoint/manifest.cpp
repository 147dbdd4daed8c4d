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
  Json json = parse_object(text, kPlace);
  ShardManifest manifest{.file = text_member(json, "file", kPlace),
                         .file_bytes = count_member(json, "file_bytes", kPlace),
                         .tensors = {}};
  require(is_plain_name(manifest.file), ErrorKind::Corrupt, kPlace,
          in_quotes(manifest.file) + " is not a plain file name");
  for (const auto& [name, tensor] : member(json, "tensors", Json::value_t::object, kPlace).items())
    manifest.tensors.emplace(name,
                             tensor_from_json(tensor, std::string(kPlace) + ": tensor " + in_quotes(name)));
  return manifest;
}

}  // namespace zero
