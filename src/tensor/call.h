#pragma once
// An operator call that reads parallel tensors, as the rules see it.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "tensor/parallel_tensor.h"

namespace zero::detail {

/// A rule does not hold for these arguments: the operator must be computed of gathered tensors, or refused.
struct NoRule : std::runtime_error {
  using runtime_error::runtime_error;
};

class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack);

  const std::string& name() const { return op_.schema().name(); }
  const std::string& overload() const { return op_.schema().overload_name(); }
  size_t count() const { return count_; }
  c10::IValue& argument(size_t i) const { return stack_[base_ + i]; }
  /// Place of the argument of that name; -1: the operator has none.
  int index(std::string_view name) const;
  c10::IValue& argument(std::string_view name) const { return argument(static_cast<size_t>(index(name))); }
  /// Whether there is such an argument and it is not None.
  bool has(std::string_view name) const { return index(name) >= 0 && !argument(name).isNone(); }
  /// Whether the operator writes to the argument.
  bool writes(size_t i) const;
  /// A dim of a tensor with so many, counted from the front.
  int64_t dim(std::string_view name, int64_t dims) const;
  /// Sizes as the caller sees them.
  std::vector<int64_t> sizes_seen(size_t i) const;

  /// Undefined where the argument is no tensor.
  Value value(size_t i) const;
  const std::shared_ptr<TensorAxis>& axis() const { return axis_; }
  Place place() const { return axis_->place(); }

  /// The form of a whole tensor that parts of a result are computed from.
  at::Tensor read_by_parts(const at::Tensor& whole) const;
  /// This rank's part of a whole tensor, likewise.
  at::Tensor part(const at::Tensor& whole, int64_t dim, const Cut& like) const;
  /// The whole of a value.
  at::Tensor gathered(const Value& value, bool for_parts) const;
  /// The sum over the ranks of partial sums [.., sequence, features]; under sequence parallelism each keeps
  /// its part of the sequence.
  Value summed(const at::Tensor& partial, const std::string& origin) const;

  [[noreturn]] void no_rule(const Cut& cut, const std::string& why) const;

  /// The operator's result.
  void finish(const Value& result) const { finish_with(wrapped(result.tensor, result.cut, axis_)); }
  void finish_with(c10::IValue result) const;
  /// Runs the operator on its arguments, which are what ranks hold by now; its results are cut like `cut`.
  void run(const Cut& cut) const;
  /// Runs it and leaves the results as they are.
  void run() const { op_.callBoxed(&stack_); }

 private:
  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  size_t count_, base_;
  std::shared_ptr<TensorAxis> axis_;
};

using Rule = void (*)(Call&);
/// The rule of an operator by its name without overload ("aten::add"); null: none.
Rule rule_of(const std::string& name);

}  // namespace zero::detail
