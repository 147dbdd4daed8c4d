#include "stages/held_tensor.h"

#include <ATen/core/grad_mode.h>

#include "tensor/parallel_tensor.h"
#include "tensor/tensor_axis.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// The same memory behind a node that does nothing. What recomputes and puts away activations would take a
// leaf for a parameter.
at::Tensor as_activation(const at::Tensor& leaf) {
  if (!leaf.defined() || !leaf.requires_grad() || !at::GradMode::is_enabled()) return leaf;
  return with_gradient(
      leaf, [](const at::Tensor& x) { return x.detach(); },
      [](const at::Tensor& gradient) { return gradient; });
}

}  // namespace

std::vector<HeldTensor> held(const std::vector<at::Tensor>& seen) {
  std::vector<HeldTensor> all;
  for (const at::Tensor& tensor : seen) {
    const Value value = value_of(tensor);
    all.push_back({value.tensor, value.cut});
  }
  return all;
}

std::vector<at::Tensor> seen(const std::vector<HeldTensor>& held, const std::shared_ptr<TensorAxis>& axis) {
  std::vector<at::Tensor> all;
  for (const HeldTensor& one : held) {
    require(!one.cut || axis != nullptr, ErrorKind::Usage, "pipeline",
            "a stage gives an activation that is cut over tensor-parallel ranks, of a module that is not",
            "cut the module that the pipeline is given, by zero::parallelize");
    all.push_back(wrapped(as_activation(one.tensor), one.cut, axis));
  }
  return all;
}

std::vector<HeldTensor> whole(const std::vector<at::Tensor>& tensors) {
  std::vector<HeldTensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back({tensor});
  return all;
}

}  // namespace zero::detail
