#pragma once
// What Adafactor's passes over a segment share.

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <mutex>

#include "optim/adafactor.h"
#include "optim/kernel_passes.h"
#include "optim/kernels/exact_sum.h"
#include "optim/rule_optimizer.h"
#include "optim/split_master.h"

namespace zero::adafactor {

inline constexpr int64_t kChunkNumel = 16 * kRuleBlockNumel;

inline at::Tensor measure(int64_t count) { return at::empty({count}, at::kByte); }

inline kernels::MatrixRun run_of(const RuleMemory& memory, const ShardSegment& segment, const Parameter& of,
                                 int64_t begin, int64_t end) {
  const kernels::Buffers buffers = kernels::advance(kernel_passes::buffers_of(memory), begin);
  return {.gradient = buffers.gradient,
          .type = buffers.gradient_type,
          .scale = kernels::rounded(of.rates.gradient_scale),
          .first = segment.parameter_begin + begin - segment.begin,
          .count = end - begin,
          .rows = of.own.rows,
          .cols = of.own.cols};
}

/// work(begin, end) on parts of [begin, end), from several threads: at least so many elements each.
template <class Work>
void over(int64_t begin, int64_t end, Work work) {
  if (begin == end) return;
  const int64_t chunks = (end - begin + kChunkNumel - 1) / kChunkNumel;
  parallel_over(measure(chunks), kernel_passes::kLeastNumel / kChunkNumel, [&](int64_t first, int64_t last) {
    work(begin + first * kChunkNumel, std::min(begin + last * kChunkNumel, end));
  });
}

/// Elements [from, from + count) of the master in fp32; `own` is memory for them.
inline const float* master_values(const RuleMemory& memory, int64_t from, int64_t count, float* own) {
  const kernels::KernelSet& all = kernels::best_kernels();
  if (kernel_passes::is_rounded(memory)) {
    all.widen(kernel_passes::halves_of(memory.master) + from, own, count);
    return own;
  }
  if (!is_remainder(memory.master)) return memory.master.const_data_ptr<float>() + from;
  all.join(kernel_passes::halves_of(memory.parameter) + from,
           memory.master.const_data_ptr<kernels::Remainder>() + from, own, count);
  return own;
}

inline void add_master_squares(const RuleMemory& memory, const ShardSegment& segment, double* digits) {
  std::mutex adding;
  over(segment.summed_begin, segment.summed_end, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<float, kChunkNumel> own;
    double mine[kernels::kDigits] = {};
    for (int64_t from = begin; from < end; from += kChunkNumel) {
      const int64_t count = std::min(kChunkNumel, end - from);
      kernels::best_kernels().factored.squares_exactly(master_values(memory, from, count, own.data()), count,
                                                       mine);
    }
    const std::lock_guard lock(adding);
    for (int i = 0; i < kernels::kDigits; ++i) digits[i] += mine[i];
  });
}

inline void directions(const RuleMemory& memory, const ShardSegment& segment, const Parameter& of,
                       int64_t begin, int64_t count, float* to) {
  kernels::best_kernels().factored.directions(run_of(memory, segment, of, begin, begin + count),
                                              of.row_factors.data(), of.column_factors.data(), of.most, to);
}

}  // namespace zero::adafactor
