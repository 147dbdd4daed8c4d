#pragma once
// A module of Python's as a tree of LibTorch's: the same tensors under the same names.

#include <torch/csrc/utils/pybind.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zero::python {

/// What an engine of a Python module works on. Parameters and buffers are Python's own tensors, so that what
/// the engine does to them is seen there. ModuleList and Sequential stay lists, whose elements become units.
class Mirror {
 public:
  /// Holds a reference to `module`. Throws Usage for what is no torch.nn.Module. With the GIL.
  explicit Mirror(pybind11::object module);

  torch::nn::Module& module() { return *root_; }

  /// Gives buffers that the Python module has replaced by other tensors since (self.mean = ...) back their
  /// place: their values go into the tensors that the engine knows. Throws Usage for one of another shape.
  /// With the GIL.
  void collect_buffers();

 private:
  struct Buffer {
    pybind11::object owner;  // the Python module
    std::string key, name;
    at::Tensor tensor;
  };
  std::shared_ptr<torch::nn::Module> add(const pybind11::handle& module, const std::string& name);
  void add_tensors(const pybind11::handle& module, const std::string& name, torch::nn::Module& to);

  pybind11::object python_;
  std::vector<std::pair<pybind11::handle, std::shared_ptr<torch::nn::Module>>> seen_;
  std::vector<Buffer> buffers_;
  std::shared_ptr<torch::nn::Module> root_;
};

}  // namespace zero::python
