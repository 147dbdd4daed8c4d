#pragma once
// The seam to LibTorch: a boxed fallback on a dispatch key that is reserved for out-of-core libraries (Fake).
// Inside an InterceptOperators scope every operator that reaches a kernel, forward and backward, eager and
// TorchScript, passes it. The key lies below autograd, so it sees the operators that kernels exist for, never
// the composites above them.

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <vector>

#include "seam/storage_access.h"

namespace zero::detail {

/// How an operator treats its arguments, from its schema.
enum class OperatorKind {
  View,         // returns aliases without reading data
  InplaceView,  // changes only sizes and strides of an argument
  Writes,       // writes an argument
  Reads,        // everything else
};
OperatorKind kind_of(const c10::OperatorHandle& op);

/// A tag whose storages want to know of operators that use them.
class OperatorListener : public StorageTag {
 public:
  /// Called before an operator that has storages with this kind of tag among its arguments; `arguments` are
  /// the positions of its inputs in `stack` and `tags` the distinct tags found, in argument order, none of
  /// them null.
  virtual void before(const c10::OperatorHandle& op, OperatorKind kind, const std::vector<StorageTag*>& tags,
                      const torch::jit::Stack& stack) = 0;
};

/// Takes over every operator of its thread while it is current (lazy construction).
class OperatorRecorder {
 public:
  virtual ~OperatorRecorder() = default;
  /// Must leave the operator's results on the stack in place of its arguments.
  virtual void record(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;
};

/// Computes an operator in LibTorch's place: its arguments leave the stack, the results take their place.
/// False: not computed, and the stack is as it was. Thread safe.
using OwnKernels = bool (*)(const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// While it lives, operators of this thread (and of the backward it runs) pass the fallback.
class InterceptOperators {
 public:
  /// With a recorder, that one handles the operators; without, the listeners of the arguments' storages are
  /// told, and `kernels`, unless null, may compute an operator first.
  explicit InterceptOperators(std::shared_ptr<OperatorRecorder> recorder = nullptr,
                              OwnKernels kernels = nullptr);
  ~InterceptOperators();
  InterceptOperators(const InterceptOperators&) = delete;
  InterceptOperators& operator=(const InterceptOperators&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  std::shared_ptr<OperatorRecorder> previous_;
  OwnKernels previous_kernels_;
};

/// While it lives, operators of this thread run as if there were no engine: our own work on slabs.
class BypassIntercept {
  c10::impl::ExcludeDispatchKeyGuard exclude_{c10::DispatchKeySet(c10::DispatchKey::Fake)};
};

/// While it lives, what this thread computes is the engine's own: no graph, no interception.
struct OwnWork {
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
};

/// The recorder of this thread, or null.
std::shared_ptr<OperatorRecorder> current_recorder();
/// The kernels of this thread, or null.
OwnKernels current_kernels();

}  // namespace zero::detail
