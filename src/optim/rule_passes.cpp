// What the passes over a shard's memory share, whatever the rule.
#include <ATen/ops/empty_like.h>

#include "optim/kernel_passes.h"
#include "optim/split_master.h"
#include "optim/tensor_passes.h"

namespace zero {

kernels::Buffers kernel_passes::buffers_of(const RuleMemory& memory) {
  kernels::Buffers buffers;
  if (is_remainder(memory.master)) {
    buffers.remainder = memory.master.mutable_data_ptr<kernels::Remainder>();
  } else {
    buffers.master = memory.master.mutable_data_ptr<float>();
  }
  buffers.gradient = memory.gradient.const_data_ptr();
  buffers.gradient_type = element_of(memory.gradient.scalar_type());
  if (memory.parameter.defined()) {
    buffers.parameter = memory.parameter.mutable_data_ptr();
    buffers.parameter_type = element_of(memory.parameter.scalar_type());
  }
  if (!memory.states.empty()) buffers.first = memory.states[0].mutable_data_ptr<float>();
  if (memory.states.size() > 1) buffers.second = memory.states[1].mutable_data_ptr<float>();
  return buffers;
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
