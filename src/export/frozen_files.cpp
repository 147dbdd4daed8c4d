#include "export/frozen_files.h"

#include "checkpoint/json.h"
#include "export/convert.h"
#include "hf/adapter.h"
#include "plan/wanted_tensors.h"
#include "zero/error.h"

namespace zero::exporting {

FrozenFiles::FrozenFiles(const std::filesystem::path& directory, const checkpoint::LeftOut& left_out,
                         const Config& config, const ModuleSpec& model, const std::string& place)
    : weights_(directory), place_(place), dtype_(config.precision.param_dtype.value_or(Dtype::f32)) {
  const std::vector<hf::WantedTensor> wanted = wanted_tensors(model, /*adapters=*/false);
  const std::map<std::string, std::string> names = hf::match(weights_, config.model, wanted);
  for (const hf::WantedTensor& tensor : wanted) {
    const auto found = left_out.fingerprints.find(tensor.name);
    if (found != left_out.fingerprints.end())
      parameters_[tensor.name] = {names.at(tensor.name), tensor.shape, found->second};
  }
  for (const auto& [name, fingerprint] : left_out.fingerprints) {
    require(!hf::is_adapter(name), ErrorKind::Unsupported, place_,
            "it leaves out the frozen adapter " + checkpoint::in_quotes(name) +
                ", which the directory of its model does not hold",
            "consolidate a checkpoint that was saved without checkpoint.trainable_only");
    require(parameters_.contains(name), ErrorKind::Corrupt, place_,
            "it leaves out " + checkpoint::in_quotes(name) + ", which its model does not have");
  }
}

void FrozenFiles::read(const std::string& name, int64_t begin, int64_t numel,
                       std::vector<std::byte>& out) const {
  std::vector<float> values(numel);
  const Parameter& parameter = parameters_.at(name);
  weights_.read(parameter.stored, BoxRange::flat(parameter.shape, begin, numel), values);
  convert(Dtype::f32, std::as_bytes(std::span(values)), dtype_, out, name);
}

void FrozenFiles::require_same(const std::string& name, uint64_t fingerprint) const {
  require(parameters_.at(name).fingerprint == fingerprint, ErrorKind::Config, weights_.directory().string(),
          name + " is not the one that " + place_ + " was trained with",
          "name the directory that training began with by --from DIR");
}

}  // namespace zero::exporting
