#pragma once
// Muon's update of whole matrices, whose elements lie on several ranks.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optim/shard_optimizer.h"

namespace zero::muon {

/// The polar factor of a matrix [rows, cols], nearly: five steps of a quintic Newton-Schulz iteration in
/// bf16, torch.optim.Muon's operators one for one. bf16 [rows, cols].
at::Tensor orthogonalised(const at::Tensor& matrix);

/// What the rate is multiplied by: sqrt(max(1, rows / cols)) (Keller Jordan's), or 0.2 sqrt(max(rows, cols))
/// (Moonlight's, arXiv 2502.16982), whose update has the size of AdamW's.
double rate_factor(const Muon& rule, int64_t rows, int64_t cols);

/// A matrix of a unit, which one rank makes orthogonal.
struct Task {
  int unit = 0;  // of those that are stepped together
  SlabMatrix matrix;
  int owner = 0;
};
/// Gives each task to the rank with the least work so far, the largest first: operations of the iteration.
/// The same on every rank.
void share_out(std::vector<Task>& tasks, int ranks);

}  // namespace zero::muon
