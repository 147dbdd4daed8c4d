#pragma once
// Lazy construction: modules that have shapes and no memory until their values are asked for, and then get
// exactly the bits that eager construction would have given them.
//
//   torch::manual_seed(1);
//   auto model = zero::lazily([] { return MyModel(options); });   // no parameter is allocated
//   zero::Engine engine(model, ...);                              // each rank keeps its shards only
//
// How: while `fn` runs, operators are written to a tape instead of being executed (only their shapes are
// computed). The tape is replayed later, in order and from the random state that lazily() found, keeping each
// value only as long as it is needed.

#include <torch/types.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>

namespace torch::nn {
class Module;
}

namespace zero {
namespace detail {
class LazyScope {
 public:
  LazyScope();
  /// Goes on with the tape of a tensor that is lazy.
  explicit LazyScope(const at::Tensor& lazy);
  ~LazyScope();
  LazyScope(const LazyScope&) = delete;
  LazyScope& operator=(const LazyScope&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};
}  // namespace detail

/// Runs `fn` (which builds a module and returns it) without giving tensors memory; returns what fn returns.
/// May nest. Deterministic values that fn reads (item(), conditions on tensors) are computed on the spot.
/// Throws Error(Unsupported), naming the operator, where fn reads a random value, draws random numbers into a
/// tensor that has data already, or uses an operator whose result's shape depends on data.
template <class F>
auto lazily(F&& fn) {
  detail::LazyScope scope;
  return std::forward<F>(fn)();
}

/// The same, going on where the lazy tensor `with` was made, so that fn may use tensors of that call: views
/// and copies that take its place. Throws Usage for a tensor that is not lazy.
template <class F>
auto lazily_with(const at::Tensor& with, F&& fn) {
  detail::LazyScope scope(with);
  return std::forward<F>(fn)();
}

/// True for a tensor built under lazily() that has no values yet.
bool is_lazy(const at::Tensor& tensor);

/// Computes the values of lazy tensors and hands each to `sink(index, value)` as soon as it is final; `value`
/// (same sizes and strides, on CPU) lives for the call. Tensors that share storage come together; tensors
/// that are not lazy are handed over as they are. At any moment only values still needed are alive. The
/// default generator ends as after eager construction if nothing drew from it since lazily(), else as it was.
void replay(std::span<const at::Tensor> tensors,
            const std::function<void(size_t index, const at::Tensor& value)>& sink);

/// Elements [begin, end) of a tensor in row-major order.
struct ElementRange {
  int64_t begin = 0, end = 0;
};

/// The same for a caller that looks at `parts[i]` of tensor i only: where the last operator on a tensor draws
/// random numbers, the other elements are skipped and stay undefined. The values do not depend on the parts.
void replay(std::span<const at::Tensor> tensors, std::span<const ElementRange> parts,
            const std::function<void(size_t index, const at::Tensor& value)>& sink);

/// Gives all lazy parameters and buffers of a module their values in place: the module is as if built
/// eagerly.
void materialize(torch::nn::Module& module);

}  // namespace zero
