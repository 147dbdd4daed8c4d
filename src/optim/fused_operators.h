#pragma once
// The kernels' passes as operators of LibTorch's dispatcher: zero::rule_update, zero::rule_direction and
// zero::sums_of_squares. A device may bring kernels of its own for them (CUDA's: src/optim/cuda), and one
// that computes with the CPU's kernels has them at once. Each is one launch; none waits for the device.
//
// Their bits are the CPU's, whose passes are called directly (kernel_passes.h).

#include <ATen/core/Tensor.h>

#include <cstring>
#include <string_view>
#include <type_traits>

#include "optim/kernels/rules.h"
#include "optim/rule_memory.h"
#include "zero/optimizer_rules.h"

namespace zero::fused_operators {

/// Whether this device has kernels for them. Loads libzero_cuda.so when first asked about CUDA.
bool exist_for(c10::Device device);

/// `rule`: the place of its row in OptimizerRule; `scalars`: its Scalars, byte by byte.
void update(int64_t rule, const RuleMemory& memory, const ShardSegment& segment, std::string_view scalars);
/// fp64 [blocks of kSumBlockNumel elements, sums of the rule], on the device.
at::Tensor direction(int64_t rule, const RuleMemory& memory, int64_t begin, int64_t end,
                     std::string_view scalars);
/// fp64 [blocks of kSumBlockNumel elements] of a contiguous [n], on its device.
at::Tensor sums_of_squares(const at::Tensor& values);

// For the kernels of a device.

/// The arguments of zero::rule_update and zero::rule_direction.
RuleMemory memory_of(const at::Tensor& master, const at::Tensor& gradient,
                     const std::optional<at::Tensor>& parameter, at::TensorList states);

template <class Rule, class Rules = OptimizerRule>
inline constexpr int64_t kPlaceOf = 0;
template <class Rule, class... Rules>
inline constexpr int64_t kPlaceOf<Rule, std::variant<Rules...>> = [] {
  int64_t place = 0;
  static_cast<void>(((std::is_same_v<Rule, Rules> || (++place, false)) || ...));
  return place;
}();

template <class Scalars>
std::string_view bytes_of(const Scalars& scalars) {
  static_assert(std::is_trivially_copyable_v<Scalars>);
  return {reinterpret_cast<const char*>(&scalars), sizeof scalars};
}

/// What bytes_of() gave.
template <class Scalars>
Scalars scalars_of(std::string_view bytes) {
  Scalars scalars;
  TORCH_INTERNAL_ASSERT(bytes.size() == sizeof scalars);
  std::memcpy(&scalars, bytes.data(), sizeof scalars);
  return scalars;
}

/// Calls f with the default value of the rule at `place`, as OptimizerRule names it.
template <class F>
void with_rule(int64_t place, F f) {
  [&]<class... Rules>(const std::variant<Rules...>*) {
    const bool is_known = ((kPlaceOf<Rules> == place && (f(Rules{}), true)) || ...);
    TORCH_CHECK(is_known, "zero::rule_update knows no rule number ", place);
  }(static_cast<const OptimizerRule*>(nullptr));
}

/// How many sums the rule's direction takes; 0 for most.
inline int64_t sums_of_rule(int64_t place) {
  int64_t sums = 0;
  with_rule(place,
            [&](const auto& rule) { sums = kernels::Arithmetic<std::decay_t<decltype(rule)>>::kSums; });
  return sums;
}

}  // namespace zero::fused_operators
