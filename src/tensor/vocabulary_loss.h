#pragma once
// Cross-entropy of logits whose vocabulary is cut over ranks, without gathering them: a maximum, then one sum
// of what the rows need (Shoeybi et al. 2019, arXiv 1909.08053, section 3).

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include "tensor/tensor_axis.h"

namespace zero::detail {

struct VocabularyLossOptions {
  int64_t reduction = at::Reduction::Mean;  // at::Reduction's numbers
  int64_t ignore_index = -100;
  double label_smoothing = 0;  // spread evenly over the whole vocabulary
};

/// Throws Usage on CPU for a target outside the vocabulary that is not ignored.
void check_targets(const at::Tensor& targets, int64_t vocabulary, int64_t ignored);

/// at::cross_entropy_loss() of logits [rows, vocabulary], of which `local` is this rank's part by `cut` (one
/// block, dim 1), and targets [rows] int64. In fp32 (fp64 of fp64), given in the logits' dtype. The same on
/// all ranks. First-order gradients only. Throws Usage on CPU for a target outside the vocabulary that is not
/// ignored.
at::Tensor vocabulary_loss(const at::Tensor& local, const Cut& cut, const at::Tensor& targets,
                           const VocabularyLossOptions& options, TensorAxis& axis);

}  // namespace zero::detail
