#include "export/whole_model.h"

#include "base/shape_text.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"
#include "plan/wanted_tensors.h"
#include "zero/error.h"

namespace zero::exporting {

using checkpoint::kModelPrefix;

void require_whole_model(const CheckpointReader& reader, const ModuleSpec& model, const FrozenFiles* frozen,
                         const std::string& place) {
  std::map<std::string, std::vector<int64_t>> found;  // shapes
  for (const auto& [name, stored] : reader.tensors())
    if (name.starts_with(kModelPrefix)) found[name.substr(kModelPrefix.size())] = stored.shape;
  if (frozen != nullptr)
    for (const auto& [name, parameter] : frozen->parameters()) found.emplace(name, parameter.shape);

  for (const bool adapters : {false, true})
    for (const hf::WantedTensor& wanted : wanted_tensors(model, adapters)) {
      const auto shape = found.find(wanted.name);
      require(shape != found.end(), ErrorKind::Corrupt, place,
              "it lacks " + checkpoint::in_quotes(wanted.name) + " of its model");
      require(adapters || shape->second == wanted.shape, ErrorKind::Corrupt, place,
              checkpoint::in_quotes(wanted.name) + " is " + shape_text(shape->second) + ", its model's is " +
                  shape_text(wanted.shape));
      found.erase(shape);
    }
  require(found.empty(), ErrorKind::Corrupt, place,
          "it holds " + checkpoint::in_quotes(found.empty() ? "" : found.begin()->first) +
              ", which its model does not have");
}

}  // namespace zero::exporting
