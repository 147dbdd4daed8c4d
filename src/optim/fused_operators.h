#pragma once
// The kernels' passes as operators of LibTorch's dispatcher: zero::rule_update, zero::rule_direction,
// zero::sums_of_squares, and zero::ordered_totals, zero::exact_totals, zero::rule_decide and
// zero::rule_apply_sums, which make what those need of what they found. A device may bring kernels of its own
// for them (CUDA's: src/optim/cuda), and one that computes with the CPU's kernels has them at once. Each is
// one launch; none waits for the device, and what changes from step to step is read from its memory: a
// recorded graph of them can be played again.
//
// Their bits are the CPU's, whose passes are called directly (kernel_passes.h).

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

#include "optim/kernels/scalar_rows.h"
#include "optim/rule_memory.h"
#include "zero/optimizer_rules.h"

namespace zero::fused_operators {

/// Whether this device has kernels for them. Loads libzero_cuda.so when first asked about CUDA.
bool exist_for(c10::Device device);

/// `rule`: the place of its row in OptimizerRule; `row`: its ScalarRow, uint8 [kScalarRowBytes]. Neither this
/// nor direction() changes anything where the row is not active.
void update(int64_t rule, const RuleMemory& memory, const ShardSegment& segment, const at::Tensor& row);
/// fp64 [blocks of kRuleBlockNumel elements, sums of the rule], on the device.
at::Tensor direction(int64_t rule, const RuleMemory& memory, int64_t begin, int64_t end,
                     const at::Tensor& row);
/// fp64 [blocks of kSumBlockNumel elements] of a contiguous [n], on its device.
at::Tensor sums_of_squares(const at::Tensor& values);
/// fp64 [pieces, sums]: of partials [n, sums] those up to ends[0], those from there to ends[1], ..., each
/// added up in order. ends: int64 [pieces], ascending.
at::Tensor ordered_totals(const at::Tensor& partials, const at::Tensor& ends);

/// The same of numbers >= 0, exactly: digits (exact_sum.h) fp64 [pieces, sums * kDigits].
at::Tensor exact_totals(const at::Tensor& partials, const at::Tensor& ends);

/// Rows of several parameters: uint8 [rows, kScalarRowBytes], and int64 [rows] their parameters' numbers.
struct Rows {
  at::Tensor table, parameters;
};
/// kernels::decide() for each. squared_norm: fp64 [1]; used: fp64, by parameter.
void decide(int64_t rule, const Rows& rows, const at::Tensor& squared_norm, const at::Tensor& used,
            double gradient_scale, double max_norm);
/// with_sums() for each. sums: digits of the rule's, fp64 [parameters, sums * kDigits].
void apply_sums(int64_t rule, const Rows& rows, const at::Tensor& sums);

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

template <class Rule>
using RowOf = kernels::ScalarRow<kernels::Arithmetic<Rule>>;
template <class Rule>
void write_row(const RowOf<Rule>& row, const at::Tensor& to) {
  static_assert(std::is_trivially_copyable_v<RowOf<Rule>> && sizeof row <= kernels::kScalarRowBytes);
  std::memcpy(to.mutable_data_ptr(), &row, sizeof row);
}
template <class Rule>
RowOf<Rule> read_row(const at::Tensor& from) {
  RowOf<Rule> row;
  std::memcpy(&row, from.const_data_ptr(), sizeof row);
  return row;
}

/// bool [1], on the row's device.
template <class Rule>
at::Tensor is_active(const at::Tensor& row) {
  constexpr auto kAt = static_cast<int64_t>(offsetof(RowOf<Rule>, is_active));
  return row.narrow(0, kAt, sizeof(int32_t)).view(at::kInt).ne(0);
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
