#pragma once
// A rule's scalars where a device reads them: a table with a row for every piece of a parameter. The host
// writes what it knows; what only the device knows (the gradient's norm, sums over whole parameters) is put
// in there, by these functions, on the CPU and on CUDA alike.

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/any_device.h"
#include "optim/kernels/exact_sum.h"
#include "optim/kernels/rules.h"

namespace zero::kernels {

/// Every row's, whatever the rule.
inline constexpr int64_t kScalarRowBytes = 128;

/// Of a rule's Arithmetic.
template <class Rule>
struct ScalarRow {
  typename Rule::Scalars scalars;
  int32_t is_active = 0;  // 0: neither master nor states change
};

/// What a gradient is multiplied by for its norm to be at most max_norm: 1 where that is 0, or the norm not
/// finite.
ZERO_ANY_DEVICE inline double clip_coefficient(double norm, double max_norm) {
  const bool clips = max_norm > 0 && norm <= DBL_MAX;
  const double coefficient = clips ? max_norm / (norm + 1e-6) : 1.0;
  return coefficient < 1.0 ? coefficient : 1.0;
}

/// All of a step that is decided once the norm is known.
struct StepDecision {
  double squared_norm = 0;
  double gradient_scale = 1;  // before clipping
  double max_norm = 0;        // 0: no clipping
};

/// `used`: on how many ranks the row's parameter had a gradient.
template <class Rule>
ZERO_ANY_DEVICE void decide(ScalarRow<Rule>& row, const StepDecision& step, double used) {
  const double norm = std::sqrt(step.squared_norm);
  row.is_active = norm <= DBL_MAX && used > 0 ? 1 : 0;
  row.scalars.gradient_scale = rounded(step.gradient_scale * clip_coefficient(norm, step.max_norm));
}

/// Of one column of values [begin, end), `stride` apart, in order.
ZERO_ANY_DEVICE inline double ordered_total(const double* values, int64_t begin, int64_t end,
                                            int64_t stride) {
  double sum = 0;
  for (int64_t i = begin; i < end; ++i) sum += values[i * stride];
  return sum;
}

/// The same of values >= 0 into digits[kDigits], exactly.
ZERO_ANY_DEVICE inline void exact_total(const double* values, int64_t begin, int64_t end, int64_t stride,
                                        double* digits) {
  for (int i = 0; i < kDigits; ++i) digits[i] = 0;
  for (int64_t i = begin; i < end; ++i) add_exactly(values[i * stride], digits);
}

/// The row's scalars once the digits of its parameter's sums are known.
template <class Rule>
ZERO_ANY_DEVICE void apply_digits(ScalarRow<Rule>& row, const double* digits) {
  double sums[Rule::kSums];
  for (int k = 0; k < Rule::kSums; ++k) sums[k] = total_of(digits + k * kDigits);
  row.scalars = Rule::with_sums(row.scalars, sums);
}

}  // namespace zero::kernels
