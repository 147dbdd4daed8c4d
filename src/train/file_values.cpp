#include "train/file_values.h"

#include <ATen/ops/from_blob.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hf/adapter.h"
#include "hf/model_directory.h"
#include "plan/wanted_tensors.h"
#include "zero/error.h"
#include "zero/model_spec.h"
#include "zero/torch_dtype.h"

namespace zero::training {
namespace {

class FileValues : public InitialValues {
 public:
  void add(const std::shared_ptr<const hf::Weights>& weights,
           const std::map<std::string, std::string>& stored_names) {
    for (const auto& [name, stored] : stored_names) places_[name] = {weights, stored};
  }

  bool holds(const std::string& name) const override { return places_.contains(name); }

  void read(const std::string& name, const BoxRange& range, at::Tensor out) const override {
    const Place& place = places_.at(name);
    place.weights->read(place.stored_name, range, std::span(out.data_ptr<float>(), out.numel()));
  }

  at::Tensor mapped(const std::string& name, at::ScalarType dtype) const override {
    const Place& place = places_.at(name);
    const hf::FileTensor& tensor = *place.weights->find(place.stored_name);
    if (scalar_type_of(tensor.dtype) != dtype || tensor.begin_byte % itemsize(tensor.dtype) != 0 ||
        tensor.numel == 0)
      return {};
    return tensor_over(place.weights->map(place.stored_name), tensor.shape, dtype);
  }

 private:
  struct Place {
    std::shared_ptr<const hf::Weights> weights;
    std::string stored_name;
  };
  std::map<std::string, Place> places_;
};

}  // namespace

// The pages cannot be written; that tensors have no read-only memory is LibTorch's.
at::Tensor tensor_over(const std::shared_ptr<const std::byte>& bytes, const std::vector<int64_t>& shape,
                       at::ScalarType dtype) {
  void* const begin = const_cast<std::byte*>(bytes.get());
  return at::from_blob(
      begin, shape, [bytes](void*) {}, at::TensorOptions(dtype));
}

std::shared_ptr<const InitialValues> file_values_of(const Config& config) {
  if (config.model.from.empty() && config.lora.from.empty()) return nullptr;
  const ModuleSpec spec = trained_spec(config);
  auto values = std::make_shared<FileValues>();
  if (!config.model.from.empty()) {
    const auto weights = std::make_shared<hf::Weights>(config.model.from);
    values->add(weights, hf::match(*weights, config.model, wanted_tensors(spec, /*adapters=*/false)));
  }
  if (!config.lora.from.empty()) {
    hf::check_adapter(config.lora.from, config.lora);
    const auto weights = std::make_shared<hf::Weights>(config.lora.from, hf::kAdapterWeights);
    values->add(weights, hf::match_adapter(*weights, config.model, wanted_tensors(spec, /*adapters=*/true)));
  }
  return values;
}

}  // namespace zero::training
