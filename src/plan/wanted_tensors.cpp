#include "plan/wanted_tensors.h"

#include "hf/adapter.h"

namespace zero {
namespace {

void collect(const ModuleSpec& module, bool adapters, std::vector<hf::WantedTensor>& wanted) {
  for (const ParameterSpec& parameter : module.parameters)
    if (hf::is_adapter(parameter.name) == adapters) wanted.push_back({parameter.name, parameter.shape});
  for (const ModuleSpec& child : module.children) collect(child, adapters, wanted);
}

}  // namespace

std::vector<hf::WantedTensor> wanted_tensors(const ModuleSpec& module, bool adapters) {
  std::vector<hf::WantedTensor> wanted;
  collect(module, adapters, wanted);
  return wanted;
}

}  // namespace zero
