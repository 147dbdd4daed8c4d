#pragma once
// Default hooks for the tensors that autograd saves, of a thread. LibTorch asks its default engine for them,
// and only Python's engine has any: from the first scope on the default engine is one of ours, which hands on
// everything else to the one before.

#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

namespace zero::detail {

class SavedTensorHooks {
 public:
  virtual ~SavedTensorHooks() = default;
  /// The hooks of one tensor that is being saved. LibTorch may drop them again unused.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> make() = 0;
};

/// While it lives, tensors that this thread's operators save get hooks of `hooks`, and of no scope around it.
class SavedTensorHooksScope {
 public:
  explicit SavedTensorHooksScope(SavedTensorHooks& hooks);
  ~SavedTensorHooksScope();
  SavedTensorHooksScope(const SavedTensorHooksScope&) = delete;
  SavedTensorHooksScope& operator=(const SavedTensorHooksScope&) = delete;

 private:
  SavedTensorHooks* previous_;
};

}  // namespace zero::detail
