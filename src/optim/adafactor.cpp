#include "optim/adafactor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>

#include "optim/adafactor_passes.h"

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

void set_part(const ParameterPart& part, FactoredParameter& of) {
  of.is_cut = true;
  of.own_shape = part.shape();
  // Elements of each dim, in the order in which the module has them.
  std::vector<std::vector<int64_t>> dims(of.shape.size());
  const auto append = [&](size_t dim, const Box& box) {
    for (int64_t i = 0; i < box.size[dim]; ++i) dims[dim].push_back(box.begin[dim] + i);
  };
  for (size_t dim = 0; dim < dims.size(); ++dim) {
    append(dim, part.box);
    for (const Box& box : part.beside)
      if (box.begin[dim] != part.box.begin[dim]) append(dim, box);
  }
  const auto places = [&](std::span<const size_t> along) {
    std::vector<int64_t> all{0};
    for (const size_t dim : along) {
      std::vector<int64_t> next;
      for (const int64_t before : all)
        for (const int64_t here : dims[dim]) next.push_back(before * of.shape[dim] + here);
      all = std::move(next);
    }
    return all;
  };
  std::vector<size_t> along(dims.size());
  std::iota(along.begin(), along.end(), size_t{0});
  if (dims.size() < 2) {
    of.row_places = {0};
    of.column_places = places(along);
    return;
  }
  of.row_places = places(std::span(along).first(along.size() - 1));
  along.erase(along.end() - 2);
  of.column_places = places(along);
}

double rate_of(const Adafactor& rule, double lr, int64_t step, double mean_square) {
  const auto t = static_cast<double>(step);
  double rate = rule.relative_step ? std::min(lr, 1 / std::sqrt(t)) : lr;
  if (rule.warmup_init) rate = std::min(rate, 1e-6 * t);
  return rate * (rule.scale_parameter ? std::max(rule.min_rms, std::sqrt(mean_square)) : 1);
}

}  // namespace adafactor

namespace {

using adafactor::directions;
using adafactor::kChunkNumel;
using adafactor::over;
using adafactor::Parameter;
using adafactor::Sizes;

constexpr std::string_view kRowMeans = "exp_avg_sq_row", kColumnMeans = "exp_avg_sq_col",
                           kMeans = "exp_avg_sq";
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
      of.of = &one;
      of.sizes = adafactor::sizes_of(one.shape);
      of.own = one.is_cut ? adafactor::sizes_of(one.own_shape) : of.sizes;
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
    one.row_factors.resize(static_cast<size_t>(sizes.all_rows()));
    one.column_factors.resize(static_cast<size_t>(sizes.all_cols()));
    renew(sizes.has_rows ? kColumnMeans : kMeans, one.column_state, one.column_sums, sizes.rows);
    for (size_t i = 0; i < one.column_sums.size(); ++i)
      one.column_factors[i] = kernels::rounded(1 / std::sqrt(one.column_sums[i]));
    one.column_factors = one.own_columns(one.column_factors);
    if (!sizes.has_rows) {
      one.row_factors.assign(static_cast<size_t>(one.own.all_rows()), 1.0F);
      continue;
    }
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
    one.row_factors = one.own_rows(one.row_factors);
  }
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
