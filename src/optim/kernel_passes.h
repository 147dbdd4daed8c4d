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

/// Elements [begin, end) in blocks that no number of threads changes; adds their sums in order.
template <class Rule>
void direction(const RuleMemory& memory, int64_t begin, int64_t end,
               const typename kernels::Arithmetic<Rule>::Scalars& scalars, double* sums) {
  constexpr int64_t kSums = kernels::Arithmetic<Rule>::kSums;
  const kernels::Buffers buffers = buffers_of(memory);
  const auto& kernel = kernels::best_kernels().of<Rule>();
  const int64_t blocks = (end - begin + kSumBlockNumel - 1) / kSumBlockNumel;
  std::vector<double> partials(blocks * kSums);
  parallel_over(at::empty({blocks}, at::kByte), 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t from = begin + block * kSumBlockNumel;
      kernel.direction(kernels::advance(buffers, from), scalars, std::min(kSumBlockNumel, end - from),
                       &partials[block * kSums]);
    }
  });
  for (int64_t i = 0; i < blocks * kSums; ++i) sums[i % kSums] += partials[i];
}

}  // namespace zero::kernel_passes
