#include "optim/adafactor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <mutex>

#include "optim/kernel_passes.h"
#include "optim/rule_optimizer.h"
#include "optim/split_master.h"

namespace zero {
namespace adafactor {

Sizes sizes_of(std::span<const int64_t> shape) {
  Sizes sizes;
  for (const int64_t size : shape) sizes.cols *= size;
  if (shape.size() < 2) return sizes;
  sizes = {.cols = shape[shape.size() - 1], .has_rows = true};
  sizes.rows = shape[shape.size() - 2];
  for (size_t i = 0; i + 2 < shape.size(); ++i) sizes.matrices *= shape[i];
  return sizes;
}

double scale_of(int32_t largest, int64_t terms) {
  if (largest == 0) return 0;
  // A magnitude is below 2^(exponent - 126).
  const int exponent = std::max(1, largest >> 23),
            bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(terms - 1)));
  return std::ldexp(1.0, std::min(51, 52 - bits) - 2 * (exponent - 126));
}

double rate_of(const Adafactor& rule, double lr, int64_t step, double mean_square) {
  const auto t = static_cast<double>(step);
  double rate = rule.relative_step ? std::min(lr, 1 / std::sqrt(t)) : lr;
  if (rule.warmup_init) rate = std::min(rate, 1e-6 * t);
  return rate * (rule.scale_parameter ? std::max(rule.min_rms, std::sqrt(mean_square)) : 1);
}

}  // namespace adafactor

namespace {

using adafactor::Parameter;
using adafactor::Sizes;

constexpr std::string_view kRowMeans = "exp_avg_sq_row", kColumnMeans = "exp_avg_sq_col",
                           kMeans = "exp_avg_sq";
constexpr int64_t kChunkNumel = 16 * kRuleBlockNumel;

at::Tensor measure(int64_t count) { return at::empty({count}, at::kByte); }

kernels::MatrixRun run_of(const RuleMemory& memory, const ShardSegment& segment, const Parameter& of,
                          int64_t begin, int64_t end) {
  const kernels::Buffers buffers = kernels::advance(kernel_passes::buffers_of(memory), begin);
  return {.gradient = buffers.gradient,
          .type = buffers.gradient_type,
          .scale = kernels::rounded(of.rates.gradient_scale),
          .first = segment.parameter_begin + begin - segment.begin,
          .count = end - begin,
          .rows = of.sizes.rows,
          .cols = of.sizes.cols};
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
const float* master_values(const RuleMemory& memory, int64_t from, int64_t count, float* own) {
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

/// Adds squares of `count` values to digits, exactly.
void add_squares(const float* values, int64_t count, double* digits) {
  std::array<double, kChunkNumel / kRuleBlockNumel> sums;
  kernels::best_kernels().sums_of_squares(values, kernels::Element::f32, count, kRuleBlockNumel, sums.data());
  for (int64_t i = 0; i < rule_blocks_of(count); ++i)
    kernels::add_exactly(sums[static_cast<size_t>(i)], digits);
}

void add_master_squares(const RuleMemory& memory, const ShardSegment& segment, double* digits) {
  std::mutex adding;
  over(segment.summed_begin, segment.summed_end, [&](int64_t begin, int64_t end) {
    alignas(64) std::array<float, kChunkNumel> own;
    double mine[kernels::kDigits] = {};
    for (int64_t from = begin; from < end; from += kChunkNumel) {
      const int64_t count = std::min(kChunkNumel, end - from);
      add_squares(master_values(memory, from, count, own.data()), count, mine);
    }
    const std::lock_guard lock(adding);
    for (int i = 0; i < kernels::kDigits; ++i) digits[i] += mine[i];
  });
}

void directions(const RuleMemory& memory, const ShardSegment& segment, const Parameter& of, int64_t begin,
                int64_t count, float* to) {
  kernels::best_kernels().factored.directions(run_of(memory, segment, of, begin, begin + count),
                                              of.row_factors.data(), of.column_factors.data(), of.most, to);
}

template <class T>
std::vector<T> sized(int64_t count) {
  return std::vector<T>(static_cast<size_t>(count));
}

// All parameters' numbers one after the other, for one reduction.
template <class Each>
void reduce(std::vector<Parameter>& all, const std::function<void(std::span<double>)>& over_ranks,
            Each each) {
  if (!over_ranks) return;
  std::vector<double> together;
  for (Parameter& one : all)
    each(one,
         [&](std::vector<double>& values) { together.insert(together.end(), values.begin(), values.end()); });
  if (together.empty()) return;
  over_ranks(together);
  auto from = together.begin();
  for (Parameter& one : all)
    each(one, [&](std::vector<double>& values) {
      std::copy_n(from, values.size(), values.begin());
      from += std::ssize(values);
    });
}

std::function<void(std::span<double>)> adding(const StepInput& input) {
  return input.dp != nullptr ? input.dp->add_up : nullptr;
}

}  // namespace

void RuleOptimizer::create_factors() {
  for (const OptimizerShard& shard : shards_) {
    std::array<int64_t, 3> numel{};
    constexpr std::array kKinds{kRowMeans, kColumnMeans, kMeans};
    const auto add = [&](size_t kind, const FactoredParameter& of, std::vector<int64_t> shape) {
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      whole_states_.push_back({.unit = shard.unit,
                               .kind = std::string(kKinds[kind]),
                               .begin = numel[kind],
                               .name = of.name,
                               .shape = std::move(shape)});
      numel[kind] += count;
    };
    for (const FactoredParameter& one : shard.factored) {
      if (one.shape.size() < 2) {
        add(2, one, one.shape);
        continue;
      }
      std::vector<int64_t> rows(one.shape.begin(), one.shape.end() - 1), columns = rows;
      columns.back() = one.shape.back();
      add(0, one, std::move(rows));
      add(1, one, std::move(columns));
    }
    for (size_t kind = 0; kind < kKinds.size(); ++kind)
      if (numel[kind] > 0)
        states_.create(shard.unit, kKinds[kind], numel[kind], at::TensorOptions(at::kFloat));
  }
}

void RuleOptimizer::forget_fresh_factors() {
  if (whole_states_.empty()) return;
  auto state = whole_states_.begin();
  for (const OptimizerShard& shard : shards_)
    for (const FactoredParameter& one : shard.factored) {
      for (; state != whole_states_.end() && state->unit == shard.unit && state->name == one.name; ++state) {
        if (steps_[static_cast<size_t>(one.parameter)] > 0) continue;
        int64_t numel = 1;
        for (const int64_t size : state->shape) numel *= size;
        const auto lease = states_.lend(shard.unit, {std::string_view(state->kind)}, StateStore::Use::Write);
        lease[state->kind].narrow(0, state->begin, numel).zero_();
      }
    }
}

// By parameter, over all units.
std::vector<Parameter> RuleOptimizer::factored_parameters(const Adafactor& rule,
                                                          const StepInput& input) const {
  std::vector<Parameter> all(steps_.size());
  for (const OptimizerShard& shard : shards_) {
    for (const FactoredParameter& one : shard.factored) {
      Parameter& of = all[static_cast<size_t>(one.parameter)];
      of.number = one.parameter;
      of.unit = shard.unit;
      of.sizes = adafactor::sizes_of(one.shape);
      of.is_used =
          input.used[static_cast<size_t>(one.parameter)] != 0 && of.sizes.all_cols() > 0 && of.sizes.rows > 0;
      of.most = rule.torch_form && rule.eps > 0 ? kernels::rounded(1 / rule.eps) : FLT_MAX;
      for (const WholeState& state : whole_states_) {
        if (state.unit != shard.unit || state.name != one.name) continue;
        (state.kind == kRowMeans ? of.row_state : of.column_state) = state.begin;
      }
    }
    for (const ShardSegment& segment : shard.segments)
      all[static_cast<size_t>(segment.parameter)].rates = rates_of(segment, input);
  }
  // Of those of which this rank has nothing, nobody asks for the rates.
  return all;
}

// Largest magnitudes, then sums of squares of rows, columns and the parameters themselves.
void RuleOptimizer::measure_factored(const StepInput& input, std::vector<Parameter>& all) const {
  std::vector<std::vector<int32_t>> rows(all.size()), columns(all.size());
  std::vector<double> digits(all.size() * kernels::kDigits);
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].is_used) continue;
    rows[i].resize(static_cast<size_t>(all[i].sizes.all_rows()));
    columns[i].resize(static_cast<size_t>(all[i].sizes.all_cols()));
  }
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    const auto at = static_cast<size_t>(segment.parameter);
    std::mutex merging;
    over(segment.summed_begin, segment.summed_end, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> own_rows = sized<int32_t>(all[at].sizes.all_rows()),
                           own_columns = sized<int32_t>(all[at].sizes.all_cols());
      kernels::best_kernels().factored.largest(run_of(memory, segment, all[at], begin, end), own_rows.data(),
                                               own_columns.data());
      const std::lock_guard lock(merging);
      const auto take = [](std::vector<int32_t>& most, const std::vector<int32_t>& own) {
        for (size_t i = 0; i < own.size(); ++i) most[i] = std::max(most[i], own[i]);
      };
      take(rows[at], own_rows);
      take(columns[at], own_columns);
    });
    add_master_squares(memory, segment, &digits[at * kernels::kDigits]);
  });
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].row_sums.assign(rows[i].begin(), rows[i].end());
    all[i].column_sums.assign(columns[i].begin(), columns[i].end());
  }
  const auto both = [](Parameter& one, auto use) {
    use(one.row_sums);
    use(one.column_sums);
  };
  if (input.dp != nullptr) reduce(all, input.dp->largest, both);
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
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    const auto at = static_cast<size_t>(segment.parameter);
    std::mutex merging;
    over(segment.summed_begin, segment.summed_end, [&](int64_t begin, int64_t end) {
      std::vector<double> own_rows = sized<double>(all[at].sizes.all_rows()),
                          own_columns = sized<double>(all[at].sizes.all_cols());
      kernels::best_kernels().factored.squares(run_of(memory, segment, all[at], begin, end),
                                               row_scales[at].data(), column_scales[at].data(),
                                               own_rows.data(), own_columns.data());
      const std::lock_guard lock(merging);
      for (size_t i = 0; i < own_rows.size(); ++i) all[at].row_sums[i] += own_rows[i];
      for (size_t i = 0; i < own_columns.size(); ++i) all[at].column_sums[i] += own_columns[i];
    });
  });
  // The parameters' own squares travel behind the last columns'.
  if (!all.empty()) {
    std::vector<double>& last = all.back().column_sums;
    const size_t before = last.size();
    last.insert(last.end(), digits.begin(), digits.end());
    reduce(all, adding(input), both);
    std::copy(last.begin() + static_cast<int64_t>(before), last.end(), digits.begin());
    last.resize(before);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].squares = kernels::total_of(&digits[i * kernels::kDigits]);
    const auto unscale = [](std::vector<double>& sums, const std::vector<double>& by) {
      for (size_t k = 0; k < sums.size(); ++k) sums[k] = by[k] > 0 ? sums[k] / by[k] : 0;
    };
    unscale(all[i].row_sums, row_scales[i]);
    unscale(all[i].column_sums, column_scales[i]);
  }
}

// The new means, and the factors that follow from them.
void RuleOptimizer::renew_means(const Adafactor& rule, std::vector<Parameter>& all) const {
  for (Parameter& one : all) {
    if (!one.is_used) continue;
    const auto step = static_cast<double>(steps_[static_cast<size_t>(one.number)] + 1);
    const double kept = 1 - std::pow(step, -rule.decay_rate), added = rule.torch_form ? 0 : rule.eps;
    const auto lease = states_.lend(one.unit, {kRowMeans, kColumnMeans, kMeans}, StateStore::Use::Write);
    const auto renew = [&](std::string_view kind, int64_t begin, std::vector<double>& sums, int64_t terms) {
      float* const state = lease[kind].mutable_data_ptr<float>() + begin;
      for (size_t i = 0; i < sums.size(); ++i) {
        state[i] =
            kernels::rounded(kept * state[i] + (1 - kept) * (sums[i] / static_cast<double>(terms) + added));
        sums[i] = state[i];
      }
    };
    const Sizes& sizes = one.sizes;
    one.row_factors.assign(static_cast<size_t>(sizes.all_rows()), 1.0F);
    one.column_factors.resize(static_cast<size_t>(sizes.all_cols()));
    renew(sizes.has_rows ? kColumnMeans : kMeans, one.column_state, one.column_sums, sizes.rows);
    for (size_t i = 0; i < one.column_sums.size(); ++i)
      one.column_factors[i] = kernels::rounded(1 / std::sqrt(one.column_sums[i]));
    if (!sizes.has_rows) continue;
    renew(kRowMeans, one.row_state, one.row_sums, sizes.cols);
    for (int64_t matrix = 0; matrix < sizes.matrices; ++matrix) {
      const auto first = static_cast<size_t>(matrix * sizes.rows),
                 last = first + static_cast<size_t>(sizes.rows);
      double mean = 0;
      for (size_t i = first; i < last; ++i) mean += one.row_sums[i];
      mean /= static_cast<double>(sizes.rows);
      if (rule.torch_form) mean = std::max(mean, rule.eps);
      for (size_t i = first; i < last; ++i)
        one.row_factors[i] = one.row_sums[i] > 0 ? kernels::rounded(std::sqrt(mean / one.row_sums[i]))
                                                 : std::numeric_limits<float>::infinity();
    }
  }
}

void RuleOptimizer::measure_directions(const Adafactor& rule, const StepInput& input,
                                       std::vector<Parameter>& all) const {
  if (rule.clip_threshold == std::numeric_limits<double>::infinity()) return;
  std::vector<double> digits(all.size() * kernels::kDigits);
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    const auto at = static_cast<size_t>(segment.parameter);
    std::mutex merging;
    over(segment.summed_begin, segment.summed_end, [&](int64_t begin, int64_t end) {
      alignas(64) std::array<float, kChunkNumel> made;
      double mine[kernels::kDigits] = {};
      for (int64_t from = begin; from < end; from += kChunkNumel) {
        const int64_t count = std::min(kChunkNumel, end - from);
        directions(memory, segment, all[at], from, count, made.data());
        add_squares(made.data(), count, mine);
      }
      const std::lock_guard lock(merging);
      for (size_t i = 0; i < kernels::kDigits; ++i) digits[at * kernels::kDigits + i] += mine[i];
    });
  });
  if (const auto add_up = adding(input); add_up && !digits.empty()) add_up(digits);
  for (size_t i = 0; i < all.size(); ++i)
    all[i].update_squares = kernels::total_of(&digits[i * kernels::kDigits]);
}

void RuleOptimizer::step_factored(const Adafactor& rule, const StepInput& input) const {
  std::vector<Parameter> all = factored_parameters(rule, input);
  measure_factored(input, all);
  renew_means(rule, all);
  measure_directions(rule, input, all);
  for_each_used(input, /*whole=*/false, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t) {
    const Parameter& one = all[static_cast<size_t>(segment.parameter)];
    const auto numel = static_cast<double>(one.sizes.matrices * one.sizes.rows * one.sizes.cols);
    const double lr = one.rates.lr, rate = adafactor::rate_of(rule, lr, one.rates.step, one.squares / numel);
    const double clipped = std::max(1.0, std::sqrt(one.update_squares / numel) / rule.clip_threshold);
    const kernels::Arithmetic<Adafactor>::Scalars scalars{
        .gradient_scale = kernels::rounded(rate / clipped),
        .decay = kernels::rounded(1 - one.rates.weight_decay * (rule.torch_form ? lr : rate)),
        .beta1 = kernels::rounded(rule.beta1),
        .one_minus_beta1 = kernels::rounded(1 - rule.beta1)};
    const kernels::KernelSet& kernels = kernels::best_kernels();
    const kernels::Buffers buffers = kernel_passes::buffers_of(memory);
    uint16_t* const halves =
        kernel_passes::is_rounded(memory) ? kernel_passes::halves_of(memory.master) : nullptr;
    const kernels::RoundingKey key = halves != nullptr ? rounding_key(segment) : kernels::RoundingKey();
    over(segment.begin, segment.end, [&](int64_t begin, int64_t end) {
      alignas(64) std::array<float, kChunkNumel> made;
      for (int64_t from = begin; from < end; from += kChunkNumel) {
        const int64_t count = std::min(kChunkNumel, end - from);
        directions(memory, segment, one, from, count, made.data());
        kernels::Buffers here = kernels::advance(buffers, from);
        here.gradient = made.data();
        here.gradient_type = kernels::Element::f32;
        if (halves != nullptr) {
          here.parameter = halves + from;
          here.number = segment.parameter_begin + from - segment.begin;
          here.rounding = key;
        }
        kernels.of<Adafactor>().update(here, scalars, count);
      }
    });
  });
}

}  // namespace zero
