#include "train/saved_values.h"

#include <ATen/ops/empty.h>

#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/shape_text.h"
#include "checkpoint/index.h"
#include "checkpoint/left_out.h"
#include "checkpoint/names.h"
#include "train/file_values.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/model_spec.h"

namespace zero::training {
namespace {

using checkpoint::kModelPrefix;

// The types that the engine stores parameters in.
at::ScalarType stored_type(Dtype dtype, const std::string& place) {
  switch (dtype) {
    case Dtype::f32:
      return at::kFloat;
    case Dtype::bf16:
      return at::kBFloat16;
    case Dtype::f16:
      return at::kHalf;
    case Dtype::f64:
      return at::kDouble;
    default:
      fail(ErrorKind::Unsupported, place, "stored as " + std::string(to_string(dtype)));
  }
}

class CheckpointValues : public InitialValues {
 public:
  CheckpointValues(std::shared_ptr<const CheckpointReader> reader, std::string place,
                   std::shared_ptr<const InitialValues> elsewhere)
      : reader_(std::move(reader)), place_(std::move(place)), elsewhere_(std::move(elsewhere)) {}

  bool holds(const std::string& name) const override {
    return reader_->tensors().contains(std::string(kModelPrefix) + name) ||
           (elsewhere_ && elsewhere_->holds(name));
  }

  void read(const std::string& name, const BoxRange& range, at::Tensor out) const override {
    const std::string stored_name = std::string(kModelPrefix) + name;
    const auto found = reader_->tensors().find(stored_name);
    if (found == reader_->tensors().end()) return elsewhere_->read(name, range, std::move(out));
    const at::ScalarType type = stored_type(found->second.dtype, place_ + ": " + name);
    const bool straight = type == out.scalar_type();
    const at::Tensor values = straight ? out : at::empty(out.sizes(), type);
    reader_->read(stored_name, range, values.mutable_data_ptr());
    if (!straight) out.copy_(values);
  }

  at::Tensor mapped(const std::string& name, at::ScalarType dtype) const override {
    const std::string stored_name = std::string(kModelPrefix) + name;
    const auto found = reader_->tensors().find(stored_name);
    if (found == reader_->tensors().end()) return elsewhere_->mapped(name, dtype);
    const StoredTensor& tensor = found->second;
    if (stored_type(tensor.dtype, place_ + ": " + name) != dtype) return {};
    const std::shared_ptr<const std::byte> bytes = reader_->map(stored_name);
    if (bytes == nullptr || tensor.pieces.front().offset_bytes % itemsize(tensor.dtype) != 0) return {};
    return tensor_over(bytes, tensor.shape, dtype);
  }

 private:
  std::shared_ptr<const CheckpointReader> reader_;
  std::string place_;
  std::shared_ptr<const InitialValues> elsewhere_;  // what the checkpoint leaves out
};

/// A checkpoint beside the model that it shall be of.
struct Comparison {
  const CheckpointReader& reader;
  const std::string& place;
  const std::map<std::string, uint64_t>& left_out;
  std::set<std::string> names = {};  // of the parameters that it holds

  void check(const ModuleSpec& module) {
    for (const ParameterSpec& parameter : module.parameters)
      if (!left_out.contains(parameter.name)) check(parameter);
    for (const ModuleSpec& child : module.children) check(child);
  }

  void check(const ParameterSpec& parameter) {
    const std::string& name = parameter.name;
    const auto found = reader.tensors().find(std::string(kModelPrefix) + name);
    require(found != reader.tensors().end(), ErrorKind::Config, place,
            "it is of another model: it has no parameter " + name);
    require(found->second.shape == parameter.shape, ErrorKind::Config, place,
            "it is of another model: " + name + " has shape " + shape_text(found->second.shape) +
                ", expected " + shape_text(parameter.shape));
    names.insert(name);
  }

  void check_nothing_else() const {
    for (const auto& [name, stored] : reader.tensors()) {
      const bool known = name.starts_with(kModelPrefix) && names.contains(name.substr(kModelPrefix.size()));
      const bool other = name.starts_with(checkpoint::kOptimizerPrefix) ||
                         name.starts_with(checkpoint::kRankPrefix) ||
                         name.starts_with(checkpoint::kBufferPrefix);
      require(known || other, ErrorKind::Config, place,
              "it is of another model: it holds " + name + ", which this one does not have");
    }
  }
};

}  // namespace

SavedValues values_of(const SavedModel& saved) {
  if (saved.hugging_face) return {.values = file_values_of(saved.config)};
  const std::string place = saved.checkpoint.string();
  const auto reader = std::make_shared<const CheckpointReader>(saved.checkpoint);
  SavedValues found;
  if (auto left_out = checkpoint::left_out_of_metadata(reader->metadata(), place))
    found.left_out = std::move(left_out->fingerprints);
  Comparison comparison{.reader = *reader, .place = place, .left_out = found.left_out};
  comparison.check(trained_spec(saved.config));
  comparison.check_nothing_else();
  std::shared_ptr<const InitialValues> elsewhere;
  if (!found.left_out.empty()) {
    require(!saved.config.model.from.empty(), ErrorKind::Unsupported, place,
            "it leaves out frozen parameters that were drawn, not read from a model directory",
            "train with checkpoint.trainable_only false");
    Config config = saved.config;
    config.lora.from.clear();  // adapters are in the checkpoint
    elsewhere = file_values_of(config);
  }
  found.values = std::make_shared<CheckpointValues>(reader, place, std::move(elsewhere));
  found.reader = reader;
  return found;
}

void SavedValues::check(const std::string& name) const {
  if (reader != nullptr && !left_out.contains(name)) reader->check(std::string(kModelPrefix) + name);
}

void SavedValues::require_same(const SavedModel& saved, const std::string& name, uint64_t fingerprint) const {
  require(left_out.at(name) == fingerprint, ErrorKind::Config, saved.config.model.from,
          name + " is not the one that " + saved.checkpoint.string() + " was trained with");
}

}  // namespace zero::training
