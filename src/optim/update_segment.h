#pragma once
// What RuleOptimizer does with one segment of a piece, whatever borrowed it.

#include <algorithm>

#include "optim/eight_bit_tensors.h"
#include "optim/kernel_passes.h"
#include "optim/rule_optimizer.h"
#include "optim/tensor_passes.h"

namespace zero {

template <class Counts>
std::vector<StatePiece> RuleOptimizer::pieces_with(const OptimizerShard& shard, Counts counts) const {
  std::vector<StatePiece> pieces = states_.pieces_of(shard.unit, all_kinds());
  std::erase_if(pieces, [&](const StatePiece& piece) {
    return std::none_of(shard.segments.begin(), shard.segments.end(), [&](const ShardSegment& segment) {
      return counts(segment) && part_in(piece, segment).numel() > 0;
    });
  });
  return pieces;
}

/// `sums`: of the segment's parameter; null for a rule without.
template <class Rule>
void RuleOptimizer::update_segment(const Rule& rule, const RuleMemory& memory, const ShardSegment& segment,
                                   const StepInput& input, const double* sums) const {
  using Arithmetic = kernels::Arithmetic<Rule>;
  auto scalars = Arithmetic::scalars(rule, rates_of(segment, input));
  if constexpr (Arithmetic::kSums > 0) scalars = Arithmetic::with_sums(scalars, sums);
  if constexpr (Arithmetic::kSums == 0 && Arithmetic::kLeastStates == 2)
    if (in_8bit_ && execution_ != Execution::kernels)
      return eight_bit_tensors::update(memory, segment, {},
                                       [&](const RuleMemory& part, const ShardSegment& of) {
                                         tensor_passes::update<Rule>(part, of, scalars);
                                       });
  const bool rounds = kernel_passes::is_rounded(memory);
  if (rounds || in_8bit_)
    return kernel_passes::update_narrow<Rule>(memory, segment, scalars,
                                              rounds ? rounding_key(segment) : kernels::RoundingKey());
  if (execution_ == Execution::kernels) return kernel_passes::update<Rule>(memory, segment, scalars);
  tensor_passes::update<Rule>(memory, segment, scalars);
}

}  // namespace zero
