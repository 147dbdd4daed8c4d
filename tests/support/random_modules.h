#pragma once
// Random module trees for property tests of the plan: lists, nesting, dtypes, frozen, tied and empty
// parameters.

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "zero/plan.h"

namespace zero::testing {

/// All names of a tree with their specs and their places in module order.
struct FlatTree {
  explicit FlatTree(const ModuleSpec& root) { add(root); }
  int position(const std::string& name) const { return positions.at(name); }

  std::map<std::string, ParameterSpec> parameters;
  std::map<std::string, int> positions;

 private:
  void add(const ModuleSpec& module) {
    for (const ParameterSpec& parameter : module.parameters) {
      positions.emplace(parameter.name, static_cast<int>(positions.size()));
      parameters.emplace(parameter.name, parameter);
    }
    for (const ModuleSpec& child : module.children) add(child);
  }
};

class RandomTree {
 public:
  explicit RandomTree(uint64_t seed) : random_(seed) {}

  ModuleSpec make(const std::string& name = "", int depth = 0) {
    ModuleSpec module{.name = name, .is_list = below(4) == 0, .parameters = {}, .children = {}};
    std::string prefix = name.empty() ? "" : name + ".";
    for (int i = below(depth == 0 ? 3 : 4); i > 0; --i)
      module.parameters.push_back(parameter(prefix + "p" + std::to_string(i)));
    if (depth < 4)
      for (int i = below(4); i > 0; --i)
        module.children.push_back(make(prefix + "m" + std::to_string(i), depth + 1));
    return module;
  }

 private:
  int below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  ParameterSpec parameter(std::string name) {
    if (!tied_.empty() && below(6) == 0) {
      ParameterSpec again = tied_[static_cast<size_t>(below(static_cast<int>(tied_.size())))];
      again.name = std::move(name);
      if (again.dtype != Dtype::i64) again.trainable = below(2) == 0;
      return again;
    }
    ParameterSpec spec{.name = std::move(name), .shape = {}};
    for (int i = below(4); i > 0; --i) spec.shape.push_back(below(8));
    constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f32, Dtype::f32, Dtype::f32, Dtype::bf16, Dtype::i64};
    spec.dtype = kDtypes[below(6)];
    spec.trainable = spec.dtype != Dtype::i64 && below(5) != 0;
    if (below(4) == 0) {
      spec.identity = static_cast<int64_t>(tied_.size());
      tied_.push_back(spec);
    }
    return spec;
  }

  std::mt19937_64 random_;
  std::vector<ParameterSpec> tied_;
};

inline ModuleSpec random_module_tree(uint64_t seed) { return RandomTree(seed).make(); }

}  // namespace zero::testing
