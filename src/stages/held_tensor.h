#pragma once
// What flows from stage to stage, as a rank has it: of an activation that is cut over tensor-parallel ranks
// its part alone, so that 1/t of the bytes travels.

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "tensor/cut.h"

namespace zero::detail {

class TensorAxis;

struct HeldTensor {
  at::Tensor tensor;  // undefined: none
  Cut cut = {};
};

/// Of what a stage's forward gave: the parts, with the history that leads to them.
std::vector<HeldTensor> held(const std::vector<at::Tensor>& seen);
/// The other way round, for a stage's forward to read; `axis` is the module's, null where nothing is cut.
/// Throws Usage for a cut tensor without an axis.
std::vector<at::Tensor> seen(const std::vector<HeldTensor>& held, const std::shared_ptr<TensorAxis>& axis);
/// Tensors that are not cut.
std::vector<HeldTensor> whole(const std::vector<at::Tensor>& tensors);

}  // namespace zero::detail
