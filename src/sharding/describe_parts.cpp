#include "sharding/describe_parts.h"

#include <algorithm>
#include <set>
#include <vector>

#include "zero/error.h"

namespace zero::detail {
namespace {

void describe_module(ModuleSpec& module, const std::vector<std::string>& axes,
                     const std::map<std::string, ParameterPart>& parts, std::set<std::string>& named) {
  for (ParameterSpec& parameter : module.parameters) {
    const auto found = parts.find(parameter.name);
    if (found != parts.end()) {
      parameter.part = found->second;
      named.insert(parameter.name);
    } else {
      parameter.part = {parameter.shape, Box::whole(parameter.shape), axes};
    }
  }
  for (ModuleSpec& child : module.children) describe_module(child, axes, parts, named);
}

}  // namespace

void describe_parts(ModuleSpec& spec, const Mesh& mesh, const std::map<std::string, ParameterPart>& parts) {
  std::vector<std::string> axes;
  for (const Axis& axis : mesh.axes())
    if (axis.name != "dp") axes.push_back(axis.name);
  std::vector<std::string> others = axes;
  std::erase_if(others, [&](const std::string& axis) { return mesh.group(axis).size() == 1; });
  std::set<std::string> named;
  describe_module(spec, others, parts, named);
  for (const auto& [name, part] : parts) {
    require(named.contains(name), ErrorKind::Config, "parts", "the model has no parameter " + name);
    require(!part.global_shape.empty() || part.box == Box{}, ErrorKind::Config, name,
            "its part has a box, but no global shape");
    for (const std::string& axis : part.replicated_over)
      require(std::find(axes.begin(), axes.end(), axis) != axes.end(), ErrorKind::Config, name,
              "it is said to be replicated over axis \"" + axis + "\", which the mesh lacks or shards over");
  }
}

}  // namespace zero::detail
