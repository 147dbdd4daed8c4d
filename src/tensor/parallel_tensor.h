#pragma once
// Tensors of which each tensor-parallel rank holds a part: parameters, which are their part and carry a mark,
// and activations, which report the sizes of the whole (so that code with hard-coded numbers of heads reads
// what it expects) and hold the part inside.
//
// Both carry a dispatch key above autograd that LibTorch reserves for extensions (DeferredInit), so that
// operators that read one, and no others, come to dispatch.cpp.

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <memory>

#include "seam/above_autograd.h"
#include "tensor/tensor_axis.h"

namespace torch::nn {
class Module;
}

namespace zero::detail {

inline constexpr c10::DispatchKey kParallelKey = kAboveAutograd;

/// While it lives, operators of this thread take tensors for what they hold.
class LocalTensors {
  c10::impl::ExcludeDispatchKeyGuard exclude_{c10::DispatchKeySet(kParallelKey)};
};

/// A tensor as a rule sees it: what this rank holds, with its history, and how that is cut.
struct Value {
  at::Tensor tensor;
  Cut cut;
  std::shared_ptr<TensorAxis> axis;  // null: an ordinary tensor
};

/// How a parameter is held.
struct ParameterMark {
  std::shared_ptr<TensorAxis> axis;
  Cut cut;
  bool is_gathered = false;  // whole where it is used
};

/// Marks a parameter, whose values are this rank's part already; again, where what the mark lies on was
/// replaced.
void mark_parameter(const at::Tensor& parameter, const ParameterMark& mark);
bool is_marked(const at::Tensor& parameter);

/// Whether operators should come here for it: an activation that is cut, or a marked parameter while its axis
/// is active.
bool is_parallel(const at::Tensor& tensor);
/// Of such a tensor; null: it is an ordinary one.
std::shared_ptr<TensorAxis> axis_of(const at::Tensor& tensor);

/// Of a module that is tensor-parallel; null: it is not.
std::shared_ptr<TensorAxis> axis_of_module(const torch::nn::Module& module);

/// An activation that is cut, or the tensor itself where `cut` is none.
at::Tensor wrapped(at::Tensor local, const Cut& cut, const std::shared_ptr<TensorAxis>& axis);
/// After an operator has changed an activation in place: its history is that of what it holds.
void renew_history(const at::Tensor& activation);

/// A parameter that is gathered where it is used comes whole.
Value value_of(const at::Tensor& tensor);

}  // namespace zero::detail
