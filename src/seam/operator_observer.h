#pragma once
// Who is told of every operator of engines' forwards and backwards, for a step that is measured.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace zero::detail {

/// Must change nothing of the stack. Called from the threads that operators run on, backward's of devices
/// too.
class OperatorObserver {
 public:
  virtual ~OperatorObserver() = default;
  /// Before the operator's kernel, with its arguments on top of the stack; parameters it reads are there.
  virtual void before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) = 0;
  /// After it, with its results there. Not called where the kernel threw.
  virtual void after(const c10::OperatorHandle& op, const torch::jit::Stack& stack) = 0;
};

/// While it lives, the observer is told of operators that pass the fallback (dispatch.h) in this process;
/// nobody may be inside one as it begins or ends.
class ObserveOperators {
 public:
  explicit ObserveOperators(OperatorObserver& observer);
  ~ObserveOperators();
  ObserveOperators(const ObserveOperators&) = delete;
  ObserveOperators& operator=(const ObserveOperators&) = delete;

 private:
  OperatorObserver* previous_;
};

}  // namespace zero::detail
