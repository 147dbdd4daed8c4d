#pragma once
// One call of recompute(), from its forward to the last backward through it. Autograd's nodes hold slots in
// place of the tensors that they saved, in the order in which they did; the first slot that backward asks for
// repeats the forward, and what is saved in that goes into the slots.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "recompute/forward_state.h"
#include "zero/recompute.h"

namespace zero::detail {

/// Stands for one tensor that autograd saved.
struct Slot {
  // As it was in the forward.
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  int64_t parameter_version = -1;  // of a leaf that needs a gradient, or a view of one
  // Between the repeated forward and its use.
  at::Tensor value;
  int64_t value_version = 0;
};

/// Backwards of several threads may come to a region: they wait for each other.
class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(TensorsFunction fn, const std::vector<at::Tensor>& inputs, const RecomputeOptions& options);

  /// `begins` is called before every repetition; `ends` after it, with the bytes of what it brought back
  /// beside inputs and parameters.
  void observe(std::function<void()> begins, std::function<void(int64_t bytes)> ends) {
    begins_ = std::move(begins);
    ends_ = std::move(ends);
  }

  /// The forward. Once.
  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs);

  /// A tensor is saved in the forward: it is let go of.
  void let_go(const std::shared_ptr<Slot>& slot, const at::Tensor& tensor);
  /// A tensor is saved in a repetition: returns it without its graph. Throws what ends the repetition when
  /// nothing more is needed.
  at::Tensor take_back(const at::Tensor& tensor);
  /// What stood there, for one use. Thread safe.
  at::Tensor take(Slot& slot);

 private:
  struct Input {
    torch::autograd::SavedVariable saved;
    bool needs_gradient = false;
    // From what is saved, where that is less: a wrapper's own tensor, or this rank's part. Collective then.
    std::function<at::Tensor(const at::Tensor& saved)> whole = {};
    std::function<at::Tensor(const at::Tensor& held)> around = {};
  };
  struct EndOfRepetition {
    const Region* region;
  };

  void keep(const at::Tensor& input);
  void repeat();
  int64_t bytes_brought_back(const std::vector<at::Tensor>& inputs) const;
  at::Tensor input_again(const Input& input) const;
  std::vector<at::Tensor> inputs_again() const;
  int64_t last_needed() const;
  void require_same(const Slot& slot, const at::Tensor& tensor) const;

  TensorsFunction fn_;
  RecomputeOptions options_;
  ForwardState state_;
  std::vector<Input> inputs_;
  std::vector<std::weak_ptr<Slot>> slots_;
  int64_t next_ = 0, last_needed_ = -1;  // of slots_, in a repetition
  std::mutex mutex_;
  std::function<void()> begins_;
  std::function<void(int64_t bytes)> ends_;
};

}  // namespace zero::detail
