#pragma once
// Recomputation: what a part of a forward keeps for its backward is thrown away, and made again from the
// part's inputs when backward comes to it. Chen et al., "Training Deep Nets with Sublinear Memory Cost"
// (2016); torch.utils.checkpoint with use_reentrant=False, which others call activation checkpointing. (Files
// of a training's state are in zero/checkpoint.h.)
//
//   x = zero::recompute([&](const at::Tensor& x) { return block->forward(x); }, x);
//
// Autograd's graph is the one of a plain forward; only the tensors that its nodes saved are away. So
// gradients, hooks on parameters, weights with several uses, retain_graph, create_graph and zero::Engine work
// as without, with the same bits; parameters that `fn` uses need not be among the inputs.

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace zero {

struct RecomputeOptions {
  /// Stands in errors.
  std::string name = "recompute";
  /// Gives `fn` the random numbers of the first time again: of the CPU's default generator and of those of
  /// the inputs' devices. Off where fn draws none: that saves copying their states.
  bool preserve_random_state = true;
  /// Inputs on a device wait for backward in pinned memory of the host. Those on the CPU stay where they are.
  bool inputs_on_host = false;
  /// Of inputs that all ranks of a tensor-parallel module hold alike each keeps its part, which are gathered
  /// over the "tp" axis before fn is called again. Elsewhere, and of inputs that are cut, nothing changes.
  bool partition_inputs = false;
};

using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;
using TensorsFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// fn(inputs), of which backward keeps the inputs alone. Without gradients (NoGradGuard, evaluation) just
/// fn(inputs). Inputs may be undefined or need no gradient; calls may be nested.
///
/// `fn` is copied and called again in backward, once for each backward that gets there, on the thread that
/// runs it, with the inputs, the random numbers, the autocast settings and the operators' kernels of the
/// first time, and only as far as the last tensor that is still needed: it must compute the same then. What
/// it captures by reference must live until then, and what it changes elsewhere (a counter, running
/// statistics) changes again. Tensors that a custom Function keeps in its saved_data stay.
///
/// Backward throws Usage, naming `options.name`, where an input or a parameter was written in place since the
/// first time, where the tensors that fn saves have other shapes, types or devices than then or are fewer,
/// and where fn throws (an Error stays as it is). Inside a tensor-parallel forward (tensor_parallel.h) the
/// second call is one, too: its collectives come in the same order on all ranks.
at::Tensor recompute(TensorFunction fn, const at::Tensor& input, const RecomputeOptions& options = {});
/// With several inputs and outputs.
std::vector<at::Tensor> recompute(TensorsFunction fn, const std::vector<at::Tensor>& inputs,
                                  const RecomputeOptions& options = {});

}  // namespace zero
