#pragma once
// Cross-entropy above a linear layer, without ever holding all logits: they are made for some rows at a time
// and become their own gradient at once. What Liger-Kernel calls fused linear cross-entropy.
//
//   loss = zero::linear_cross_entropy(hidden, head->weight, targets);   // cross_entropy(linear(hidden,
//   weight), targets)

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace zero {

struct LinearCrossEntropyOptions {
  enum class Reduction { Mean, Sum, None };

  at::Tensor bias = {};         // [vocabulary], of the weight's dtype; undefined: none
  int64_t ignore_index = -100;  // rows with this target count nothing
  Reduction reduction = Reduction::Mean;
  double label_smoothing = 0;  // 0..1: this share of the target is spread evenly over the vocabulary
  int64_t rows_at_a_time = 0;  // of which there are logits; 0: as many as make 2^27 of them
};

/// cross_entropy(hidden * weight^T + bias, targets) as torch.nn.functional has it: hidden [..., width],
/// weight [vocabulary, width] of the same floating dtype, targets [...] int64. Returns fp32 (fp64 of fp64): a
/// scalar, NaN for the mean of no rows, or with Reduction::None targets' shape. Softmax and sums are in fp32.
///
/// Mean and sum compute their gradients in the forward, where any are wanted, so that one backward may take
/// them: Usage in a second one. Without reduction backward makes the logits again. Unsupported in a backward
/// that makes a graph (create_graph). For parameters of an engine too, at every stage and tied ones.
///
/// In a tensor-parallel forward (tensor_parallel.h) a weight and a bias of whose vocabulary each rank holds a
/// part stay cut, and rows_at_a_time counts this rank's logits; a collective, whose backward makes them
/// again.
///
/// Throws Usage for other shapes and dtypes, and on CPU for targets outside the vocabulary; Config for
/// options out of range.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options = {});

}  // namespace zero
