#include "sharding/model_parameters.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/script.h>

#include <algorithm>
#include <map>

#include "zero/error.h"

namespace zero::detail {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
}

// Collects tensors while the tree is walked, and finds out which names stand for the same values.
class Collector {
 public:
  ParameterSpec parameter(const std::string& name, const at::Tensor& tensor) {
    require(tensor.layout() == at::kStrided && tensor.has_storage(), ErrorKind::Unsupported, name,
            "parameters must be dense tensors");
    const int64_t identity = identity_of(name, tensor);
    Entry& entry = entries_[identity];
    if (std::none_of(entry.tensors.begin(), entry.tensors.end(),
                     [&](const at::Tensor& known) { return known.is_same(tensor); }))
      entry.tensors.push_back(tensor);
    entry.names.push_back(name);
    return {.name = name,
            .shape = tensor.sizes().vec(),
            .dtype = dtype_of(tensor.scalar_type()),
            .trainable = tensor.requires_grad(),
            .identity = identity};
  }

  void buffer(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    for (const auto& known : buffers_)
      if (known.second.is_same(tensor)) return;
    buffers_.emplace_back(name, tensor);
  }

  ModelParameters finish(ModuleSpec spec) {
    ModelParameters result{.spec = std::move(spec), .tensors = {}, .buffers = std::move(buffers_)};
    for (Entry& entry : entries_)
      for (const std::string& name : entry.names) result.tensors[name] = entry.tensors;
    return result;
  }

 private:
  struct Entry {
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
  };

  int64_t identity_of(const std::string& name, const at::Tensor& tensor) {
    if (tensor.numel() > 0) {
      for (int64_t index : by_storage_[storage_of(tensor)]) {
        const Entry& entry = entries_[index];
        const at::Tensor& other = entry.tensors.front();
        if (other.sizes() == tensor.sizes() && other.strides() == tensor.strides() &&
            other.storage_offset() == tensor.storage_offset())
          return index;
        const int64_t begin = tensor.storage_offset(), other_begin = other.storage_offset();
        require(begin >= other_begin + other.numel() || other_begin >= begin + tensor.numel(),
                ErrorKind::Unsupported, name,
                "its memory overlaps with parameter '" + entry.names.front() + "' in another shape",
                "tie parameters by using the same tensor");
      }
    }
    const auto index = static_cast<int64_t>(entries_.size());
    entries_.emplace_back();
    by_storage_[storage_of(tensor)].push_back(index);
    return index;
  }

  std::vector<Entry> entries_;
  std::map<const c10::StorageImpl*, std::vector<int64_t>> by_storage_;
  std::vector<std::pair<std::string, at::Tensor>> buffers_;
};

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

ModuleSpec walk(const torch::nn::Module& module, const std::string& name, Collector& collector) {
  ModuleSpec spec;
  spec.name = name;
  spec.is_list = dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
                 dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    if (item.value().defined())
      spec.parameters.push_back(collector.parameter(join(name, item.key()), item.value()));
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    collector.buffer(join(name, item.key()), item.value());
  for (const auto& child : module.named_children())
    spec.children.push_back(walk(*child.value(), join(name, child.key()), collector));
  return spec;
}

ModuleSpec walk(const torch::jit::Module& module, const std::string& name, Collector& collector) {
  ModuleSpec spec;
  spec.name = name;
  const std::string type = module.type()->name() ? module.type()->name()->name() : "";
  spec.is_list = type == "ModuleList" || type == "Sequential";
  for (const auto& item : module.named_parameters(/*recurse=*/false))
    spec.parameters.push_back(collector.parameter(join(name, item.name), item.value));
  for (const auto& item : module.named_buffers(/*recurse=*/false))
    collector.buffer(join(name, item.name), item.value);
  for (const auto& child : module.named_children())
    spec.children.push_back(walk(child.value, join(name, child.name), collector));
  return spec;
}

}  // namespace

ModelParameters parameters_of(const torch::nn::Module& module) {
  Collector collector;
  ModuleSpec spec = walk(module, "", collector);
  return collector.finish(std::move(spec));
}

ModelParameters parameters_of(const torch::jit::Module& module) {
  Collector collector;
  ModuleSpec spec = walk(module, "", collector);
  return collector.finish(std::move(spec));
}

ModelParameters parameters_of(const std::vector<std::pair<std::string, at::Tensor>>& named) {
  Collector collector;
  ModuleSpec spec;
  for (const auto& [name, tensor] : named) spec.parameters.push_back(collector.parameter(name, tensor));
  return collector.finish(std::move(spec));
}

}  // namespace zero::detail
