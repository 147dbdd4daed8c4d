#pragma once
// The parameters and buffers that a forward reads, and the units they are in.

#include <ATen/core/Tensor.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "suspend/trace.h"

namespace torch::nn {
class Module;
}

namespace zero::detail {

class Sources {
 public:
  struct Source {
    at::Tensor tensor;
    std::vector<std::string> names;
    std::vector<int> units;  // ascending
    bool is_buffer = false;
  };

  /// `patterns`: of the units' names; none: the elements of the module's lists, its other children, and what
  /// it registers itself, each one. Throws Config for a pattern that matches nothing and for a parameter in
  /// no unit. Buffers in no unit, or in one without parameters, are everybody's.
  Sources(const torch::nn::Module& module, std::vector<std::vector<std::string>> patterns);

  /// -1: not one of a unit.
  int find(const at::Tensor& tensor) const;
  /// A buffer of the module's that is in no unit.
  bool is_shared_buffer(const at::Tensor& tensor) const;
  const Source& operator[](int i) const { return all_[static_cast<size_t>(i)]; }
  int count() const { return static_cast<int>(all_.size()); }
  int unit_count() const { return static_cast<int>(patterns_.size()); }
  std::string unit_name(int unit) const { return patterns_[static_cast<size_t>(unit)].front(); }
  UnitsOfSource units() const;
  /// The units in another order: that one at `order[i]` comes i-th.
  void reorder(const std::vector<int>& order);

 private:
  std::vector<std::vector<std::string>> patterns_;
  std::vector<Source> all_;
  std::unordered_map<const c10::TensorImpl*, int> places_;
  std::vector<at::Tensor> shared_buffers_;
};

}  // namespace zero::detail
