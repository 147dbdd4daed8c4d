#include "suspend/sources.h"

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>

#include "base/glob.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

bool is_list(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::ModuleListImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
}

void collect_units(const torch::nn::Module& module, const std::string& prefix,
                   std::vector<std::vector<std::string>>& patterns) {
  std::vector<std::string> own;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) own.push_back(prefix + item.key());
  if (!own.empty()) {
    for (const auto& item : module.named_buffers(/*recurse=*/false)) own.push_back(prefix + item.key());
    patterns.push_back(std::move(own));
  }
  for (const auto& child : module.named_children()) {
    if (child.value()->parameters().empty()) continue;
    const std::string name = prefix + child.key();
    if (is_list(*child.value()))
      collect_units(*child.value(), name + ".", patterns);
    else
      patterns.push_back({name + ".*"});
  }
}

bool matches_any(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_matches(pattern, name); });
}

}  // namespace

Sources::Sources(const torch::nn::Module& module, std::vector<std::vector<std::string>> patterns)
    : patterns_(std::move(patterns)) {
  if (patterns_.empty()) collect_units(module, "", patterns_);
  std::vector<bool> has_parameter(patterns_.size());
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_buffer) {
    if (!tensor.defined()) return;
    const auto [place, is_new] = places_.try_emplace(tensor.unsafeGetTensorImpl(), count());
    if (is_new) all_.push_back({tensor, {}, {}, is_buffer});
    Source& source = all_[static_cast<size_t>(place->second)];
    source.names.push_back(name);
    for (int unit = 0; unit < unit_count(); ++unit) {
      if (!matches_any(patterns_[static_cast<size_t>(unit)], name)) continue;
      if (!is_buffer) has_parameter[static_cast<size_t>(unit)] = true;
      source.units.push_back(unit);
      break;
    }
    std::sort(source.units.begin(), source.units.end());
    source.units.erase(std::unique(source.units.begin(), source.units.end()), source.units.end());
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), false);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), true);
  for (int unit = 0; unit < unit_count(); ++unit)
    require(has_parameter[static_cast<size_t>(unit)], ErrorKind::Config, "pipeline's units",
            "\"" + unit_name(unit) + "\" matches no parameter of the module that no earlier unit has");
  for (const Source& source : all_) {
    require(source.is_buffer || !source.units.empty(), ErrorKind::Config, source.names.front(),
            "no unit of the pipeline has it", "add a pattern that matches it");
    if (source.units.empty()) shared_buffers_.push_back(source.tensor);
  }
  std::erase_if(places_,
                [&](const auto& place) { return all_[static_cast<size_t>(place.second)].units.empty(); });
}

int Sources::find(const at::Tensor& tensor) const {
  const auto found = places_.find(tensor.unsafeGetTensorImpl());
  return found == places_.end() ? -1 : found->second;
}

bool Sources::is_shared_buffer(const at::Tensor& tensor) const {
  return std::any_of(shared_buffers_.begin(), shared_buffers_.end(),
                     [&](const at::Tensor& buffer) { return buffer.is_same(tensor); });
}

UnitsOfSource Sources::units() const {
  UnitsOfSource units;
  for (const Source& source : all_) units.push_back(source.units);
  return units;
}

void Sources::reorder(const std::vector<int>& order) {
  std::vector<int> place(order.size());
  std::vector<std::vector<std::string>> patterns;
  for (size_t i = 0; i < order.size(); ++i) {
    place[static_cast<size_t>(order[i])] = static_cast<int>(i);
    patterns.push_back(patterns_[static_cast<size_t>(order[i])]);
  }
  patterns_ = std::move(patterns);
  for (Source& source : all_) {
    for (int& unit : source.units) unit = place[static_cast<size_t>(unit)];
    std::sort(source.units.begin(), source.units.end());
  }
}

}  // namespace zero::detail
