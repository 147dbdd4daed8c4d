#pragma once
// A rule's tensors as the kernels want them: pointers and element types, of whatever device the tensors are.
// All of it is here, so that libzero_cuda.so needs nothing of this library to link to.

#include <ATen/core/Tensor.h>

#include <optional>

#include "optim/kernels/kernels.h"
#include "optim/split_master.h"

namespace zero {

/// Elements of one partial sum: fixed, so that the order of additions never depends on threads.
inline constexpr int64_t kSumBlockNumel = 1 << 15;

inline int64_t sum_blocks_of(int64_t numel) { return (numel + kSumBlockNumel - 1) / kSumBlockNumel; }

/// Elements of one partial sum of a rule's: a shard's border parts none of them, so that what is added does
/// not depend on the ranks.
inline constexpr int64_t kRuleBlockNumel = kStateBlockNumel;
inline int64_t rule_blocks_of(int64_t numel) { return (numel + kRuleBlockNumel - 1) / kRuleBlockNumel; }

/// fp32, bf16 or fp16 as the kernels name them; nothing for others.
inline std::optional<kernels::Element> known_element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return kernels::Element::f32;
    case at::kBFloat16:
      return kernels::Element::bf16;
    case at::kHalf:
      return kernels::Element::f16;
    default:
      return std::nullopt;
  }
}

/// Of contiguous tensors: master fp32, or int16 beside a bf16 parameter; or bf16, which becomes fp32 a few
/// elements at a time elsewhere; states fp32, in the order of the rule's row. check_shard() has refused other
/// types before any of them comes here.
inline kernels::Buffers rule_buffers(const at::Tensor& master, const at::Tensor& gradient,
                                     const at::Tensor& parameter, at::TensorList states) {
  kernels::Buffers buffers;
  if (is_remainder(master)) {
    buffers.remainder = master.mutable_data_ptr<kernels::Remainder>();
  } else if (master.scalar_type() == at::kFloat) {
    buffers.master = master.mutable_data_ptr<float>();
  }
  buffers.gradient = gradient.const_data_ptr();
  buffers.gradient_type = known_element_of(gradient.scalar_type()).value();
  if (parameter.defined()) {
    buffers.parameter = parameter.mutable_data_ptr();
    buffers.parameter_type = known_element_of(parameter.scalar_type()).value();
  }
  if (!states.empty()) buffers.first = states[0].mutable_data_ptr<float>();
  if (states.size() > 1) buffers.second = states[1].mutable_data_ptr<float>();
  return buffers;
}

}  // namespace zero
