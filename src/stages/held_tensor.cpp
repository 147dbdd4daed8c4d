#include "stages/held_tensor.h"

#include "tensor/parallel_tensor.h"
#include "zero/error.h"

namespace zero::detail {

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
    all.push_back(one.cut ? wrapped(one.tensor, one.cut, axis) : one.tensor);
  }
  return all;
}

std::vector<HeldTensor> whole(const std::vector<at::Tensor>& tensors) {
  std::vector<HeldTensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back({tensor});
  return all;
}

}  // namespace zero::detail
