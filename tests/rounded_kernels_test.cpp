// Updates that round stochastically in their pass, against widening, updating and rounding one after the
// other; and passes over rows and columns against the reference's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "optim/kernels/kernels.h"

namespace zero::kernels {
namespace {

std::vector<float> normals(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

struct RoundedRun {
  std::vector<uint16_t> halves;
  std::vector<float> first, second;
  bool operator==(const RoundedRun&) const = default;
};

RoundedRun start_of(size_t count) {
  RoundedRun run{
      .halves = std::vector<uint16_t>(count), .first = normals(count, 2), .second = normals(count, 3)};
  for (float& value : run.second) value = std::fabs(value);
  std::vector<float> masters = normals(count, 4);
  std::fill(masters.begin() + 3, masters.begin() + 6, HUGE_VALF);
  masters[7] = NAN;
  available_kernels().front()->round(masters.data(), run.halves.data(), static_cast<int64_t>(count), {1}, 0);
  return run;
}

template <class Rule>
void expect_rounded_in_one_pass(const Rule& rule) {
  constexpr size_t kCount = 1003;
  constexpr int64_t kWrap = int64_t{1} << 33;  // where the bits' key changes
  const auto scalars =
      Arithmetic<Rule>::scalars(rule, {.lr = 0.01, .weight_decay = 0.1, .gradient_scale = 0.37, .step = 3});
  const std::vector<float> gradient = normals(kCount, 1);
  const auto count = static_cast<int64_t>(kCount);
  const auto buffers_of = [&](RoundedRun& run) {
    const size_t states = rule_state_names(rule).size();
    return Buffers{.gradient = gradient.data(),
                   .first = states > 0 ? run.first.data() : nullptr,
                   .second = states > 1 ? run.second.data() : nullptr};
  };
  for (const int64_t number : {int64_t{0}, int64_t{77}, kWrap - 500, kWrap - 501}) {
    const KernelSet& reference = *available_kernels().front();
    RoundedRun expected = start_of(kCount);
    std::vector<float> master(kCount);
    reference.widen(expected.halves.data(), master.data(), count);
    Buffers apart = buffers_of(expected);
    apart.master = master.data();
    reference.of<Rule>().update(apart, scalars, count);
    reference.round(master.data(), expected.halves.data(), count, {42}, number);
    for (const KernelSet* set : available_kernels()) {
      RoundedRun run = start_of(kCount);
      Buffers together = buffers_of(run);
      together.parameter = run.halves.data();
      together.number = number;
      together.rounding = {42};
      set->of<Rule>().update(together, scalars, count);
      EXPECT_EQ(run.halves, expected.halves) << RuleRow<Rule>::name << ", " << set->name << ", " << number;
    }
  }
}

TEST(RoundedKernels, UpdateIsThatOfAWidenedMasterThenRounded) {
  for_each_rule([]<class Rule>(const Rule& rule) {
    if constexpr (Arithmetic<Rule>::kSums == 0) expect_rounded_in_one_pass(rule);
  });
  expect_rounded_in_one_pass(SGD{.momentum = 0.9});
  expect_rounded_in_one_pass(Adafactor{.beta1 = 0.9});
}

TEST(FactoredKernels, EveryVariantGivesTheReferencesBitsWhereverItIsCut) {
  constexpr int64_t kMatrices = 2, kRows = 13, kCols = 1100, kNumel = kMatrices * kRows * kCols;
  const std::vector<float> gradient = normals(kNumel, 5);
  std::vector<uint16_t> halves(kNumel);
  available_kernels().front()->round(gradient.data(), halves.data(), kNumel, {1}, 0);
  struct Found {
    std::vector<int32_t> rows = std::vector<int32_t>(kMatrices * kRows),
                         columns = std::vector<int32_t>(kMatrices * kCols);
    std::vector<double> row_sums = std::vector<double>(kMatrices * kRows),
                        column_sums = std::vector<double>(kMatrices * kCols);
    std::vector<float> directions = std::vector<float>(kNumel);
    bool operator==(const Found&) const = default;
  };
  const std::vector<double> row_scales(kMatrices * kRows, 0x1p35), column_scales(kMatrices * kCols, 0x1p40);
  const std::vector<float> row_factors(kMatrices * kRows, 3.0F),
      column_factors = normals(kMatrices * kCols, 6);
  for (const Element type : {Element::f32, Element::bf16}) {
    const auto run = [&](const KernelSet& set, const std::vector<int64_t>& cuts) {
      Found found;
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        const int64_t from = cuts[i];
        const MatrixRun part{.gradient = type == Element::f32
                                             ? static_cast<const void*>(gradient.data() + from)
                                             : halves.data() + from,
                             .type = type,
                             .scale = 0.3F,
                             .first = from,
                             .count = cuts[i + 1] - from,
                             .rows = kRows,
                             .cols = kCols};
        set.factored.largest(part, found.rows.data(), found.columns.data());
        set.factored.squares(part, row_scales.data(), column_scales.data(), found.row_sums.data(),
                             found.column_sums.data());
        set.factored.directions(part, row_factors.data(), column_factors.data(), 2.0F,
                                found.directions.data() + from);
      }
      return found;
    };
    const Found expected = run(*available_kernels().front(), {0, kNumel});
    EXPECT_GT(expected.row_sums[0], 0);
    EXPECT_GT(expected.column_sums[kCols], 0) << "the second matrix has columns of its own";
    for (const KernelSet* set : available_kernels())
      EXPECT_TRUE(run(*set, {0, 5, 1100, 3000, 14301, kNumel}) == expected) << set->name;
  }
}

}  // namespace
}  // namespace zero::kernels
