#pragma once
// A backward in two halves: the gradients of inputs, which the stage before waits for, and later those of
// weights (Qi et al., arXiv 2401.10241). For any graph that autograd recorded: nothing is computed twice.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

#include <vector>

namespace zero::detail {

class SplitBackward {
 public:
  /// The first half: from `outputs` with their gradients to `inputs`, leaves. A node between them that also
  /// leads to weights is left half done, with the gradient that reached it. Autograd's built-in nodes compute
  /// only what a pass asks for; of others, which compute everything at once (a recomputed part, a custom
  /// function), the weights' gradients are kept as they came. Inputs that nothing depends on have no
  /// gradient. The outputs' graph must not be used again.
  SplitBackward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                const std::vector<at::Tensor>& inputs);

  /// One of each input; undefined where there is none.
  const std::vector<at::Tensor>& input_gradients() const { return input_gradients_; }

  /// The second half, once: gradients arrive at the weights as in a whole backward, in its order and bits.
  void run_weights();

 private:
  std::vector<at::Tensor> input_gradients_;
  std::vector<torch::autograd::Edge> roots_;  // what is left to do, with the gradients that arrived there
  std::vector<at::Tensor> root_gradients_;
};

}  // namespace zero::detail
