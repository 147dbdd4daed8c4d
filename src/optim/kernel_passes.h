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

/// Whether the moments are codes and scales; whether the master is bf16, and nothing beside it.
inline bool is_in_8bit(const RuleMemory& memory) {
  return !memory.states.empty() && memory.states[0].scalar_type() != at::kFloat;
}
inline bool is_rounded(const RuleMemory& memory) { return memory.master.scalar_type() == at::kBFloat16; }
inline uint16_t* halves_of(const at::Tensor& bf16) { return static_cast<uint16_t*>(bf16.mutable_data_ptr()); }

/// Writes a segment's bf16 master: `values` [numel], fp32.
void set_rounded(const RuleMemory& memory, const ShardSegment& segment, const at::Tensor& values,
                 const kernels::RoundingKey& key);

/// Two moments in 8 bits.
struct NarrowMoments {
  NarrowMoments() = default;
  explicit NarrowMoments(const RuleMemory& memory);
  void widen(int64_t from, int64_t count, std::array<float*, 2> into) const;
  void store(int64_t from, int64_t count, std::array<const float*, 2> moments) const;

  std::array<uint8_t*, 2> codes = {};
  std::array<float*, 2> scales = {};
};

template <class Rule>
void update(const RuleMemory& memory, const ShardSegment& segment,
            const typename kernels::Arithmetic<Rule>::Scalars& scalars) {
  const kernels::Buffers buffers = buffers_of(memory);
  const auto& kernel = kernels::best_kernels().of<Rule>();
  parallel_over(piece(memory.master, segment), kLeastNumel, [&](int64_t begin, int64_t end) {
    kernel.update(kernels::advance(buffers, segment.begin + begin), scalars, end - begin);
  });
}

/// The same where memory is not what the kernels update: moments in 8 bits, a bf16 master that is rounded
/// stochastically. Moments of some blocks become fp32 in a cache, are updated and go back. `key`: of the
/// rounding, where the master is bf16.
template <class Rule>
void update_narrow(const RuleMemory& memory, const ShardSegment& segment,
                   const typename kernels::Arithmetic<Rule>::Scalars& scalars,
                   const kernels::RoundingKey& key) {
  constexpr int64_t kChunkNumel = 16 * eight_bit::kBlockNumel;
  const kernels::Buffers buffers = buffers_of(memory);
  const auto& kernel = kernels::best_kernels().of<Rule>();
  const bool in_8bit = is_in_8bit(memory), rounds = is_rounded(memory);
  const NarrowMoments narrow = in_8bit ? NarrowMoments(memory) : NarrowMoments();
  const int64_t chunks = (segment.numel() + kChunkNumel - 1) / kChunkNumel;
  parallel_over(at::empty({chunks}, at::kByte), kLeastNumel / kChunkNumel, [&](int64_t first, int64_t last) {
    alignas(64) std::array<std::array<float, kChunkNumel>, 2> moments;
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t from = segment.begin + chunk * kChunkNumel,
                    count = std::min(kChunkNumel, segment.end - from);
      kernels::Buffers here = kernels::advance(buffers, from);
      if (in_8bit) {
        narrow.widen(from, count, {moments[0].data(), moments[1].data()});
        here.first = moments[0].data();
        here.second = moments[1].data();
      }
      if (rounds) {
        here.parameter = halves_of(memory.master) + from;
        here.number = segment.parameter_begin + from - segment.begin;
        here.rounding = key;
      }
      kernel.update(here, scalars, count);
      if (in_8bit) narrow.store(from, count, {moments[0].data(), moments[1].data()});
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
  const uint16_t* const halves = is_rounded(memory) ? halves_of(memory.master) : nullptr;
  parallel_over(at::empty({blocks}, at::kByte), kLeastNumel / kRuleBlockNumel,
                [&](int64_t first, int64_t last) {
                  Sums sums;
                  alignas(64) std::array<float, kBlocksAtATime * kRuleBlockNumel> master;
                  for (int64_t block = first; block < last; block += kBlocksAtATime) {
                    const int64_t count = std::min(kBlocksAtATime, last - block),
                                  from = begin + block * kRuleBlockNumel;
                    const int64_t numel = std::min(count * kRuleBlockNumel, end - from);
                    kernels::Buffers here = kernels::advance(buffers, from);
                    if (halves != nullptr) {
                      kernels::best_kernels().widen(halves + from, master.data(), numel);
                      here.master = master.data();
                    }
                    kernel.direction(here, scalars, numel, kRuleBlockNumel, sums.data());
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
