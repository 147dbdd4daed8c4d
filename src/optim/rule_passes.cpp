// What the passes over a shard's memory share, whatever the rule.
#include <ATen/ops/empty_like.h>

#include "optim/kernel_passes.h"
#include "optim/split_master.h"
#include "optim/tensor_passes.h"

namespace zero {

kernels::Buffers kernel_passes::buffers_of(const RuleMemory& memory) {
  // In 8 bits they are no fp32: update_8bit() puts those of some blocks in their place.
  const bool in_8bit = !memory.states.empty() && memory.states[0].scalar_type() != at::kFloat;
  return rule_buffers(memory.master, memory.gradient, memory.parameter,
                      in_8bit ? std::vector<at::Tensor>() : memory.states);
}

void kernel_passes::add_partials(const at::Tensor& partials, double* sums) {
  const int64_t count = partials.size(-1);
  const double* const values = partials.const_data_ptr<double>();
  for (int64_t i = 0; i < partials.numel(); ++i) sums[i % count] += values[i];
}

at::Tensor kernel_passes::sums_of_squares(const at::Tensor& values) {
  const kernels::Element type = element_of(values.scalar_type());
  const auto* const base = static_cast<const char*>(values.const_data_ptr());
  const at::Tensor partials = at::empty({sum_blocks_of(values.numel())}, at::kDouble);
  double* const sums = partials.mutable_data_ptr<double>();
  parallel_over(partials, 1, [&](int64_t first, int64_t last) {
    const int64_t from = first * kSumBlockNumel;
    const int64_t count = std::min(last * kSumBlockNumel, values.numel()) - from;
    kernels::best_kernels().sums_of_squares(base + from * values.element_size(), type, count, kSumBlockNumel,
                                            sums + first);
  });
  return partials;
}

at::Tensor tensor_passes::master_of(const RuleMemory& memory, int64_t from, int64_t numel) {
  const at::Tensor master = memory.master.narrow(0, from, numel);
  if (!is_remainder(master)) return master;
  at::Tensor whole = at::empty_like(master, at::kFloat);
  join_master(memory.parameter.narrow(0, from, numel), master, whole);
  return whole;
}

void tensor_passes::set_master(const RuleMemory& memory, int64_t from, const at::Tensor& values) {
  const at::Tensor master = memory.master.narrow(0, from, values.numel());
  const auto parameter = [&] { return memory.parameter.narrow(0, from, values.numel()); };
  if (is_remainder(master)) return split_master(values, parameter(), master);
  at::Tensor(master).copy_(values);
  if (memory.parameter.defined()) parameter().copy_(values);
}

}  // namespace zero
