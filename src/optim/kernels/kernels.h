#pragma once
// Optimizer updates on raw memory: one pass reads gradient, master and state once, and writes
// master, state and the low-precision parameter. No tensors and no threads here: callers split the range.
//
// All variants do the same IEEE operations in the same order (no fused multiply-add), so they give the same
// bits. Only the payload of a NaN in fp32 is left open, as IEEE 754 leaves it.

#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <variant>

#include "optim/kernels/rules.h"

namespace zero::kernels {

enum class Element : uint8_t { none, f32, bf16, f16 };

/// An fp32 value in two halves: bits(value) = (bf16 << 16) + remainder, where bf16 is the value rounded to
/// nearest even. Of 65537 remainders one does not fit: half way above an even bf16 (32768) is kept as 32767,
/// one fp32 unit in the last place nearer. A NaN is the quiet NaN with remainder 0.
using Remainder = int16_t;

/// What stochastic rounding draws its bits from, beside an element's number: two of a parameter and a step.
/// An element's 16 random bits are added to the 16 that bf16 cuts off, and a carry rounds it away from zero:
/// with the probability of what is cut off. What bf16 holds stays as it is.
struct RoundingKey {
  uint64_t bits = 0;
};

/// Pointers to the first element of a range. They need only the alignment of their elements.
struct Buffers {
  float* master = nullptr;  // updated; null with a remainder
  Remainder* remainder =
      nullptr;  // not null: the parameter is bf16, and the two are the master, both updated
  const void* gradient = nullptr;  // read; f32, bf16 or f16
  void* parameter = nullptr;       // master rounded to nearest even; NaN becomes the quiet NaN
  float* first = nullptr;          // the rule's states, in the order of its row; null: none
  float* second = nullptr;
  Element gradient_type = Element::f32;
  Element parameter_type = Element::none;  // none: no copy
  // Not negative: the parameter is bf16, it is the master, and new values are rounded stochastically. The
  // first element's number in the rounding.
  int64_t number = -1;
  RoundingKey rounding = {};
};

/// The same buffers, `count` elements further on.
Buffers advance(Buffers buffers, int64_t count);

/// The kernels of one rule, over `count` elements.
template <class Rule>
struct RuleKernels {
  using Scalars = typename Arithmetic<Rule>::Scalars;
  void (*update)(const Buffers& buffers, const Scalars& scalars, int64_t count);
  /// The first phase of a rule with sums (null for others): writes its kSums sums over every `block` elements
  /// (a multiple of 16) and over the rest, in fp64 and 16 interleaved partial sums each.
  void (*direction)(const Buffers& buffers, const Scalars& scalars, int64_t count, int64_t block,
                    double* sums);
};

template <class Rules>
struct KernelsOfRules;
template <class... Rules>
struct KernelsOfRules<std::variant<Rules...>> {
  using type = std::tuple<RuleKernels<Rules>...>;
};

/// Elements [first, first + count) of matrices [.., rows, cols], one after the other.
struct MatrixRun {
  const void* gradient = nullptr;  // of the first
  Element type = Element::f32;
  float scale = 1;  // what they are multiplied by first
  int64_t first = 0, count = 0;
  int64_t rows = 1, cols = 1;
};
/// Over a gradient whose squares are kept as means over rows and columns. Arrays are of all rows, and of the
/// columns of all matrices.
struct FactoredKernels {
  /// The largest magnitudes: bits of fp32 values.
  void (*largest)(const MatrixRun& run, int32_t* rows, int32_t* columns);
  /// Adds squares times a power of two, cut off to whole numbers whose sums stay below 2^52.
  void (*squares)(const MatrixRun& run, const double* row_scales, const double* column_scales,
                  double* row_sums, double* column_sums);
  /// element * min(its row's factor * its column's, most).
  void (*directions)(const MatrixRun& run, const float* row_factors, const float* column_factors, float most,
                     float* directions);
  /// Adds squares of fp32 values to the digits of a sum (exact_sum.h), each square exactly. The digits are
  /// carried then.
  void (*squares_exactly)(const float* values, int64_t count, double* digits);
};

/// One implementation of all kernels.
struct KernelSet {
  std::string_view name;  // "reference", "avx2", "avx512"
  KernelsOfRules<OptimizerRule>::type rules;
  /// Sums of squares in fp64, one for every `block` elements and one for the rest; each in 16 interleaved
  /// partial sums.
  void (*sums_of_squares)(const void* gradient, Element type, int64_t count, int64_t block, double* sums);
  /// A master and its two parts, as Buffers::remainder says.
  void (*split)(const float* masters, uint16_t* halves, Remainder* remainders, int64_t count);
  void (*join)(const uint16_t* halves, const Remainder* remainders, float* masters, int64_t count);
  /// bf16 to fp32, and back rounded up or down at random; see RoundingKey.
  void (*widen)(const uint16_t* halves, float* values, int64_t count);
  void (*round)(const float* values, uint16_t* halves, int64_t count, const RoundingKey& key, int64_t first);

  FactoredKernels factored;

  template <class Rule>
  const RuleKernels<Rule>& of() const {
    return std::get<RuleKernels<Rule>>(rules);
  }
};

/// The sets that this processor and operating system can run, slowest first; the reference is always there.
std::span<const KernelSet* const> available_kernels();

/// The last of available_kernels().
const KernelSet& best_kernels();

}  // namespace zero::kernels
