// What Adafactor sums up over the ranks that have parts of a parameter.
#include <functional>
#include <numeric>

#include "optim/adafactor_passes.h"

namespace zero {
namespace {

using adafactor::directions;
using adafactor::kChunkNumel;
using adafactor::over;
using adafactor::Parameter;
using adafactor::run_of;

template <class T>
std::vector<T> sized(int64_t count) {
  return std::vector<T>(static_cast<size_t>(count));
}

// All parameters' numbers one after the other, for one reduction of each axis.
template <class Each>
void reduce(std::vector<Parameter>& all, const StepInput& input,
            std::function<void(std::span<double>)> AxisReductions::*how, Each each) {
  const auto over_ranks = [&](const AxisReductions& axis, std::span<const int> numbers) {
    std::vector<double> together;
    for (const int number : numbers)
      each(all[static_cast<size_t>(number)], [&](std::vector<double>& values) {
        together.insert(together.end(), values.begin(), values.end());
      });
    if (together.empty()) return;
    (axis.*how)(together);
    auto from = together.begin();
    for (const int number : numbers)
      each(all[static_cast<size_t>(number)], [&](std::vector<double>& values) {
        std::copy_n(from, values.size(), values.begin());
        from += std::ssize(values);
      });
  };
  if (input.dp != nullptr) {
    std::vector<int> everything(all.size());
    std::iota(everything.begin(), everything.end(), 0);
    over_ranks(*input.dp, everything);
  }
  for (const CutParameters& cut : input.cut) over_ranks(cut.along, cut.parameters);
}

void both(Parameter& one, const std::function<void(std::vector<double>&)>& use) {
  use(one.row_sums);
  use(one.column_sums);
}

double total_of(std::vector<double>& digits) {
  kernels::carry_digits(digits.data());
  return kernels::total_of(digits.data());
}

}  // namespace

// Of rows and columns, cut off as the scales say; and over all ranks those of the parameters too.
void RuleOptimizer::sum_squares(const StepInput& input, const std::vector<std::vector<double>>& row_scales,
                                const std::vector<std::vector<double>>& column_scales,
                                std::vector<Parameter>& all) const {
  std::vector<std::vector<double>> rows(all.size()), columns(all.size()), row_by(all.size()),
      column_by(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].is_used) continue;
    rows[i] = sized<double>(all[i].own.all_rows());
    columns[i] = sized<double>(all[i].own.all_cols());
    row_by[i] = all[i].own_rows(row_scales[i]);
    column_by[i] = all[i].own_columns(column_scales[i]);
  }
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    const auto at = static_cast<size_t>(segment.parameter);
    std::mutex merging;
    over(segment.summed_begin, segment.summed_end, [&](int64_t begin, int64_t end) {
      std::vector<double> own_rows = sized<double>(all[at].own.all_rows()),
                          own_columns = sized<double>(all[at].own.all_cols());
      kernels::best_kernels().factored.squares(run_of(memory, segment, all[at], begin, end),
                                               row_by[at].data(), column_by[at].data(), own_rows.data(),
                                               own_columns.data());
      const std::lock_guard lock(merging);
      for (size_t i = 0; i < own_rows.size(); ++i) rows[at][i] += own_rows[i];
      for (size_t i = 0; i < own_columns.size(); ++i) columns[at][i] += own_columns[i];
    });
  });
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i].is_used) all[i].set_sums(rows[i], columns[i]);
  reduce(all, input, &AxisReductions::add_up,
         [](Parameter& one, const std::function<void(std::vector<double>&)>& use) {
           both(one, use);
           use(one.digits);
         });
}

// Largest magnitudes, then sums of squares of rows, columns and the parameters themselves.
void RuleOptimizer::measure_factored(const StepInput& input, std::vector<Parameter>& all) const {
  std::vector<std::vector<int32_t>> rows(all.size()), columns(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].digits.assign(kernels::kDigits, 0.0);
    if (!all[i].is_used) continue;
    rows[i].resize(static_cast<size_t>(all[i].own.all_rows()));
    columns[i].resize(static_cast<size_t>(all[i].own.all_cols()));
  }
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    const auto at = static_cast<size_t>(segment.parameter);
    std::mutex merging;
    over(segment.summed_begin, segment.summed_end, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> own_rows = sized<int32_t>(all[at].own.all_rows()),
                           own_columns = sized<int32_t>(all[at].own.all_cols());
      kernels::best_kernels().factored.largest(run_of(memory, segment, all[at], begin, end), own_rows.data(),
                                               own_columns.data());
      const std::lock_guard lock(merging);
      const auto take = [](std::vector<int32_t>& most, const std::vector<int32_t>& own) {
        for (size_t i = 0; i < own.size(); ++i) most[i] = std::max(most[i], own[i]);
      };
      take(rows[at], own_rows);
      take(columns[at], own_columns);
    });
    adafactor::add_master_squares(memory, segment, all[at].digits.data());
  });
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].is_used) all[i].set_sums(rows[i], columns[i]);
  }
  reduce(all, input, &AxisReductions::largest, both);
  std::vector<std::vector<double>> row_scales(all.size()), column_scales(all.size());
  const auto scales = [](std::vector<double>& sums, std::vector<double>& into, int64_t terms) {
    for (const double largest : sums)
      into.push_back(adafactor::scale_of(static_cast<int32_t>(largest), terms));
    std::fill(sums.begin(), sums.end(), 0.0);
  };
  for (size_t i = 0; i < all.size(); ++i) {
    scales(all[i].row_sums, row_scales[i], all[i].sizes.cols);
    scales(all[i].column_sums, column_scales[i], all[i].sizes.rows);
  }
  sum_squares(input, row_scales, column_scales, all);
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].squares = total_of(all[i].digits);
    const auto unscale = [](std::vector<double>& sums, const std::vector<double>& by) {
      for (size_t k = 0; k < sums.size(); ++k) sums[k] = by[k] > 0 ? sums[k] / by[k] : 0;
    };
    unscale(all[i].row_sums, row_scales[i]);
    unscale(all[i].column_sums, column_scales[i]);
  }
}

void RuleOptimizer::measure_directions(const Adafactor& rule, const StepInput& input,
                                       std::vector<Parameter>& all) const {
  if (rule.clip_threshold == std::numeric_limits<double>::infinity()) return;
  for (Parameter& one : all) one.digits.assign(kernels::kDigits, 0.0);
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    const auto at = static_cast<size_t>(segment.parameter);
    std::mutex merging;
    over(segment.summed_begin, segment.summed_end, [&](int64_t begin, int64_t end) {
      alignas(64) std::array<float, kChunkNumel> made;
      double mine[kernels::kDigits] = {};
      for (int64_t from = begin; from < end; from += kChunkNumel) {
        const int64_t count = std::min(kChunkNumel, end - from);
        directions(memory, segment, all[at], from, count, made.data());
        kernels::best_kernels().factored.squares_exactly(made.data(), count, mine);
      }
      const std::lock_guard lock(merging);
      for (size_t i = 0; i < kernels::kDigits; ++i) all[at].digits[i] += mine[i];
    });
  });
  reduce(all, input, &AxisReductions::add_up,
         [](Parameter& one, const std::function<void(std::vector<double>&)>& use) { use(one.digits); });
  for (Parameter& one : all) one.update_squares = total_of(one.digits);
}

}  // namespace zero
