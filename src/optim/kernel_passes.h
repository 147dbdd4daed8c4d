#pragma once
// A rule over one segment of a shard, by the CPU's kernels.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "compute/parallel.h"
#include "optim/kernels/kernels.h"
#include "optim/rule_memory.h"

namespace zero::kernel_passes {

// Elements a thread takes at least: below this, waking it costs more than it saves.
inline constexpr int64_t kLeastNumel = 1 << 15;

kernels::Buffers buffers_of(const RuleMemory& memory);

template <class Rule>
void update(const RuleMemory& memory, const ShardSegment& segment,
            const typename kernels::Arithmetic<Rule>::Scalars& scalars) {
  const kernels::Buffers buffers = buffers_of(memory);
  const auto& kernel = kernels::best_kernels().of<Rule>();
  parallel_over(piece(memory.master, segment), kLeastNumel, [&](int64_t begin, int64_t end) {
    kernel.update(kernels::advance(buffers, segment.begin + begin), scalars, end - begin);
  });
}

/// fp64 [sum_blocks_of(end - begin), kSums]: the sums of elements [begin, end), in blocks that no number of
/// threads changes.
template <class Rule>
at::Tensor direction_partials(const RuleMemory& memory, int64_t begin, int64_t end,
                              const typename kernels::Arithmetic<Rule>::Scalars& scalars) {
  constexpr int64_t kSums = kernels::Arithmetic<Rule>::kSums;
  const kernels::Buffers buffers = buffers_of(memory);
  const auto& kernel = kernels::best_kernels().of<Rule>();
  const at::Tensor partials = at::empty({sum_blocks_of(end - begin), kSums}, at::kDouble);
  double* const sums = partials.mutable_data_ptr<double>();
  parallel_over(at::empty({partials.size(0)}, at::kByte), 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t from = begin + block * kSumBlockNumel;
      kernel.direction(kernels::advance(buffers, from), scalars, std::min(kSumBlockNumel, end - from),
                       sums + block * kSums);
    }
  });
  return partials;
}

/// Adds partial sums [blocks, n], on CPU, to sums[n], in order.
void add_partials(const at::Tensor& partials, double* sums);

template <class Rule>
void direction(const RuleMemory& memory, int64_t begin, int64_t end,
               const typename kernels::Arithmetic<Rule>::Scalars& scalars, double* sums) {
  add_partials(direction_partials<Rule>(memory, begin, end, scalars), sums);
}

/// fp64 [sum_blocks_of(n)] of a contiguous [n] on CPU.
at::Tensor sums_of_squares(const at::Tensor& values);

}  // namespace zero::kernel_passes
