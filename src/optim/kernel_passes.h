#pragma once
// A rule over one segment of a shard, by the CPU's kernels.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <vector>

#include "compute/parallel.h"
#include "optim/eight_bit.h"
#include "optim/kernels/exact_sum.h"
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

/// The same with moments in 8 bits: those of some blocks become fp32 in a cache, are updated and go back.
template <class Rule>
void update_8bit(const RuleMemory& memory, const ShardSegment& segment,
                 const typename kernels::Arithmetic<Rule>::Scalars& scalars) {
  constexpr int64_t kChunkNumel = 16 * eight_bit::kBlockNumel;
  const kernels::Buffers buffers = buffers_of(memory);
  const auto& kernel = kernels::best_kernels().of<Rule>();
  const std::array maps{&eight_bit::DynamicMap::of_signed(), &eight_bit::DynamicMap::of_unsigned()};
  const std::array codes{memory.states[0].mutable_data_ptr<uint8_t>(),
                         memory.states[2].mutable_data_ptr<uint8_t>()};
  const std::array scales{memory.states[1].mutable_data_ptr<float>(),
                          memory.states[3].mutable_data_ptr<float>()};
  const int64_t chunks = (segment.numel() + kChunkNumel - 1) / kChunkNumel;
  parallel_over(at::empty({chunks}, at::kByte), kLeastNumel / kChunkNumel, [&](int64_t first, int64_t last) {
    alignas(64) std::array<std::array<float, kChunkNumel>, 2> moments;
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t from = segment.begin + chunk * kChunkNumel;
      const int64_t count = std::min(kChunkNumel, segment.end - from), block = from / eight_bit::kBlockNumel;
      for (size_t i = 0; i < 2; ++i)
        eight_bit::dequantise(*maps[i], codes[i] + from, scales[i] + block, moments[i].data(), count);
      kernels::Buffers here = kernels::advance(buffers, from);
      here.first = moments[0].data();
      here.second = moments[1].data();
      kernel.update(here, scalars, count);
      for (size_t i = 0; i < 2; ++i)
        eight_bit::quantise(*maps[i], moments[i].data(), codes[i] + from, scales[i] + block, count);
    }
  });
}

/// use(first block, how many, their sums [blocks, kSums]) for the rule_blocks_of(end - begin) blocks of
/// elements [begin, end), from several threads at a time. Blocks do not depend on the threads.
template <class Rule, class Use>
void directions(const RuleMemory& memory, int64_t begin, int64_t end,
                const typename kernels::Arithmetic<Rule>::Scalars& scalars, Use use) {
  constexpr int64_t kBlocksAtATime = 16;
  using Sums = std::array<double, kBlocksAtATime * kernels::Arithmetic<Rule>::kSums>;
  const kernels::Buffers buffers = buffers_of(memory);
  const auto& kernel = kernels::best_kernels().of<Rule>();
  const int64_t blocks = rule_blocks_of(end - begin);
  parallel_over(
      at::empty({blocks}, at::kByte), kLeastNumel / kRuleBlockNumel, [&](int64_t first, int64_t last) {
        Sums sums;
        for (int64_t block = first; block < last; block += kBlocksAtATime) {
          const int64_t count = std::min(kBlocksAtATime, last - block),
                        from = begin + block * kRuleBlockNumel;
          kernel.direction(kernels::advance(buffers, from), scalars,
                           std::min(count * kRuleBlockNumel, end - from), kRuleBlockNumel, sums.data());
          use(block, count, sums.data());
        }
      });
}

/// fp64 [rule_blocks_of(end - begin), kSums].
template <class Rule>
at::Tensor direction_partials(const RuleMemory& memory, int64_t begin, int64_t end,
                              const typename kernels::Arithmetic<Rule>::Scalars& scalars) {
  constexpr int64_t kSums = kernels::Arithmetic<Rule>::kSums;
  const at::Tensor partials = at::empty({rule_blocks_of(end - begin), kSums}, at::kDouble);
  double* const all = partials.mutable_data_ptr<double>();
  directions<Rule>(memory, begin, end, scalars, [&](int64_t first, int64_t count, const double* sums) {
    std::copy(sums, sums + count * kSums, all + first * kSums);
  });
  return partials;
}

/// Adds partial sums [blocks, n], on CPU, to sums[n], in order.
void add_partials(const at::Tensor& partials, double* sums);

/// Adds the sums of elements [begin, end) to digits [kSums, kDigits], exactly.
template <class Rule>
void direction(const RuleMemory& memory, int64_t begin, int64_t end,
               const typename kernels::Arithmetic<Rule>::Scalars& scalars, double* digits) {
  constexpr int64_t kSums = kernels::Arithmetic<Rule>::kSums;
  std::mutex adding;
  directions<Rule>(memory, begin, end, scalars, [&](int64_t, int64_t count, const double* sums) {
    const std::lock_guard lock(adding);
    for (int64_t i = 0; i < count * kSums; ++i)
      kernels::add_exactly(sums[i], digits + i % kSums * kernels::kDigits);
  });
}

/// fp64 [sum_blocks_of(n)] of a contiguous [n] on CPU.
at::Tensor sums_of_squares(const at::Tensor& values);

}  // namespace zero::kernel_passes
