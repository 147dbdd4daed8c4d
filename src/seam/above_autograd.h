#pragma once
// The other seam to LibTorch: a boxed fallback on a dispatch key above autograd that LibTorch reserves for
// extensions (DeferredInit). Operators come here as a module calls them, composites whole, before anything is
// recorded for backward: those that read a tensor with the key, and all of a thread while a taker is current.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

namespace zero::detail {

inline constexpr c10::DispatchKey kAboveAutograd = c10::DispatchKey::DeferredInit;

/// Must leave the operator's results on the stack in place of its arguments.
using AboveAutograd = void (*)(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                               torch::jit::Stack* stack);

/// Whom operators come to where no taker is current; for the life of the process, one for all threads.
void set_above_autograd(AboveAutograd handler);

/// Computes operators of its threads in another type before anybody else sees them; must leave the results on
/// the stack. `run` is what happens otherwise. One for the life of the process.
using CastAboveAutograd = void (*)(const c10::OperatorHandle& op, torch::jit::Stack* stack,
                                   c10::function_ref<void()> run);
void set_cast_above_autograd(CastAboveAutograd cast);

/// While it lives, operators of this thread that nobody takes come to the cast.
class CastOperators {
 public:
  CastOperators();
  ~CastOperators();
  CastOperators(const CastOperators&) = delete;
  CastOperators& operator=(const CastOperators&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  bool previous_;
};

/// What happens to an operator that nobody takes: the cast's work, the handler's, or LibTorch's.
void pass_on_above_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack);

/// Takes over every operator of its thread while it is current (a forward of which this rank computes a
/// part).
class OperatorTaker {
 public:
  virtual ~OperatorTaker() = default;
  virtual void take(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) = 0;
};

/// While it lives, `taker` is current in this thread; null: nobody is, as inside an operator that one
/// computes.
class TakeOperators {
 public:
  explicit TakeOperators(OperatorTaker* taker);
  ~TakeOperators();
  TakeOperators(const TakeOperators&) = delete;
  TakeOperators& operator=(const TakeOperators&) = delete;

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  OperatorTaker* previous_;
};

}  // namespace zero::detail
