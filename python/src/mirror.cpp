#include "mirror.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

#include "zero/error.h"

namespace zero::python {
namespace py = pybind11;

namespace {

class Node : public torch::nn::Module {
 public:
  explicit Node(std::string name) : torch::nn::Module(std::move(name)) {}
};

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

py::object torch_nn(const char* name) { return py::module_::import("torch.nn").attr(name); }

at::Tensor tensor_of(const py::handle& value, const std::string& name) {
  require(THPVariable_Check(value.ptr()), ErrorKind::Usage, name, "is no tensor");
  return THPVariable_Unpack(value.ptr());
}

}  // namespace

Mirror::Mirror(py::object module) : python_(std::move(module)) {
  require(py::isinstance(python_, torch_nn("Module")), ErrorKind::Usage, "module",
          "expected a torch.nn.Module, got " + std::string(py::str(py::type::of(python_))));
  root_ = add(python_, "");
  seen_.clear();
}

std::shared_ptr<torch::nn::Module> Mirror::add(const py::handle& module, const std::string& name) {
  const auto known =
      std::find_if(seen_.begin(), seen_.end(), [&](const auto& pair) { return pair.first.is(module); });
  if (known != seen_.end()) return known->second;
  const bool is_list =
      py::isinstance(module, torch_nn("ModuleList")) || py::isinstance(module, torch_nn("Sequential"));
  const std::string type = py::str(py::type::handle_of(module).attr("__name__"));
  auto list = is_list ? std::make_shared<torch::nn::ModuleListImpl>() : nullptr;
  std::shared_ptr<torch::nn::Module> node = list;
  if (!node) node = std::make_shared<Node>(type);
  seen_.emplace_back(module, node);
  add_tensors(module, name, *node);
  for (const auto& [key, child] : py::cast<py::dict>(module.attr("_modules"))) {
    if (child.is_none()) continue;
    const std::string word = py::str(key);
    // A list's names are its places, in LibTorch; Python's lists can skip some (None) or have names of their
    // own.
    if (list && word == std::to_string(list->size()))
      list->push_back(add(child, join(name, word)));
    else
      node->register_module(word, add(child, join(name, word)));
  }
  return node;
}

void Mirror::add_tensors(const py::handle& module, const std::string& name, torch::nn::Module& to) {
  for (const auto& [key, value] : py::cast<py::dict>(module.attr("_parameters"))) {
    if (value.is_none()) continue;
    const std::string word = py::str(key);
    const at::Tensor tensor = tensor_of(value, join(name, word));
    require(tensor.is_leaf(), ErrorKind::Unsupported, join(name, word), "is computed from other tensors");
    to.register_parameter(word, tensor, tensor.requires_grad());
  }
  for (const auto& [key, value] : py::cast<py::dict>(module.attr("_buffers"))) {
    if (value.is_none()) continue;
    const std::string word = py::str(key);
    const at::Tensor tensor = tensor_of(value, join(name, word));
    to.register_buffer(word, tensor);
    buffers_.push_back({py::reinterpret_borrow<py::object>(module), word, join(name, word), tensor});
  }
}

void Mirror::collect_buffers() {
  for (Buffer& buffer : buffers_) {
    py::dict all = buffer.owner.attr("_buffers");
    const py::str key(buffer.key);
    require(all.contains(key) && THPVariable_Check(py::object(all[key]).ptr()), ErrorKind::Usage, buffer.name,
            "the buffer is gone", "keep the buffers that the module had when the engine was made");
    const at::Tensor now = tensor_of(all[key], buffer.name);
    if (now.is_same(buffer.tensor)) continue;
    require(now.sizes() == buffer.tensor.sizes(), ErrorKind::Usage, buffer.name,
            "the buffer was replaced by one of another shape", "keep its shape, or let it be no buffer");
    const at::NoGradGuard no_grad;
    buffer.tensor.copy_(now);
    all[key] = py::reinterpret_steal<py::object>(THPVariable_Wrap(buffer.tensor));
  }
}

}  // namespace zero::python
