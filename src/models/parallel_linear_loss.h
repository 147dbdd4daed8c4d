#pragma once
// The cross-entropy above a linear layer inside a tensor-parallel forward, where operators know what ranks
// hold and no loop of linear_loss.h may look inside.

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace zero::detail {

struct ParallelLinearLossOptions {
  at::Tensor bias = {};
  int64_t reduction = at::Reduction::Mean;  // at::Reduction's numbers
  int64_t ignore_index = -100;
  double label_smoothing = 0;
  int64_t rows_at_a_time = 0;  // 0: as many as make kLogitsAtATime logits of this rank's
};

/// cross_entropy_loss(linear(hidden, weight, bias)) of hidden [..., width], a weight of whose vocabulary each
/// rank holds a part, and targets [...] int64; the same on all ranks. Where there are more rows than
/// rows_at_a_time, a rank holds its logits of so many at a time: backward makes them again (recompute()), for
/// one product and the sums over the axis a second time; the loss is in fp32 then (fp64 of fp64), else as
/// cross_entropy_loss() gives it. Where ranks hold parts of the positions alone, each makes the logits of its
/// own, all at once.
at::Tensor parallel_linear_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const ParallelLinearLossOptions& options = {});

}  // namespace zero::detail
