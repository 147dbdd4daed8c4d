// Steps by fused operators: nothing that changes from step to step is an argument, and nothing is read back.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "compute/host_copies.h"
#include "optim/eight_bit_tensors.h"
#include "optim/host_tier.h"
#include "optim/kernel_passes.h"
#include "optim/rule_optimizer.h"

namespace zero {

void RuleOptimizer::make_rows() {
  std::vector<int64_t> parameters;
  c10::Device device = c10::kCPU;
  for (const OptimizerShard& shard : shards_) {
    if (is_on_host(shard)) continue;
    for (const ShardSegment& segment : shard.segments) parameters.push_back(segment.parameter);
    device = states_.lend(shard.unit, {kMasterState}, StateStore::Use::Shape)[kMasterState].device();
  }
  if (states_.host() != nullptr) device = states_.host()->link.device();
  const at::Tensor numbers = at::tensor(parameters, at::kLong);
  rows_ = std::make_unique<fused_operators::Rows>(fused_operators::Rows{
      .table =
          at::empty({numbers.numel(), kernels::kScalarRowBytes}, at::TensorOptions(device).dtype(at::kByte)),
      .parameters = detail::copied_to_device(numbers, device)});
}

// What the host knows. Where the device decides, that puts the rest there.
template <class Rule>
void RuleOptimizer::fill_rows(const Rule& rule, const StepInput& input) const {
  const at::Tensor table = at::zeros(rows_->table.sizes(), at::kByte);
  int64_t row = 0;
  for (const OptimizerShard& shard : shards_) {
    if (is_on_host(shard)) continue;
    for (const ShardSegment& segment : shard.segments) {
      const bool is_used = input.on_device != nullptr || input.used[segment.parameter];
      fused_operators::write_row<Rule>(
          {.scalars = kernels::Arithmetic<Rule>::scalars(rule, rates_of(segment, input)),
           .is_active = is_used ? 1 : 0},
          table.select(0, row++));
    }
  }
  detail::copy_to_device(table, rows_->table);
}

// The first phase; digits of exact sums, fp64 [parameters, sums * kDigits], added up over all ranks.
template <class Rule>
at::Tensor RuleOptimizer::fused_sums(const Rule& /*rule*/, const StepInput& input) const {
  constexpr int64_t kSums = kernels::Arithmetic<Rule>::kSums;
  const at::TensorOptions options = rows_->table.options().dtype(at::kDouble);
  std::vector<at::Tensor> partials{at::empty({0, kSums}, options)};
  std::vector<int64_t> ends(rows_->table.size(0), 0);
  int64_t count = 0;
  for_each_used(input, /*whole=*/true,
                [&](const RuleMemory& memory, const ShardSegment& segment, int64_t row) {
                  const auto over = [&](int64_t begin, int64_t end) {
                    return fused_operators::direction(fused_operators::kPlaceOf<Rule>, memory, begin, end,
                                                      rows_->table.select(0, row));
                  };
                  if (segment.begin < segment.counted_begin) over(segment.begin, segment.counted_begin);
                  if (segment.counted_begin < segment.counted_end) {
                    partials.push_back(over(segment.counted_begin, segment.counted_end));
                    count += partials.back().size(0);
                  }
                  if (segment.counted_end < segment.end) over(segment.counted_end, segment.end);
                  ends[row] = count;
                });
  for (size_t row = 1; row < ends.size(); ++row) ends[row] = std::max(ends[row], ends[row - 1]);
  const at::Tensor totals = fused_operators::exact_totals(
      at::cat(partials), detail::copied_to_device(at::tensor(ends, at::kLong), options.device()));
  at::Tensor sums = at::zeros({std::ssize(steps_), kSums * kernels::kDigits}, options);
  sums.index_copy_(0, rows_->parameters, totals);
  if (input.on_device != nullptr) return input.on_device->sum_over_ranks(sums);
  if (!input.sum_over_ranks) return sums;
  const at::Tensor on_host = sums.cpu();
  input.sum_over_ranks({on_host.mutable_data_ptr<double>(), static_cast<size_t>(on_host.numel())});
  return detail::copied_to_device(on_host, options.device());
}

void RuleOptimizer::step_fused(const StepInput& input) const {
  const auto run = [&]<class Rule>(const Rule& rule) {
    constexpr int64_t kPlace = fused_operators::kPlaceOf<Rule>;
    fill_rows(rule, input);
    if (const DeviceDecision* known = input.on_device)
      fused_operators::decide(kPlace, *rows_, known->squared_norm, known->used, input.gradient_scale,
                              known->max_norm);
    if constexpr (kernels::Arithmetic<Rule>::kSums > 0)
      fused_operators::apply_sums(kPlace, *rows_, fused_sums(rule, input));
    constexpr bool kWhole = kernels::Arithmetic<Rule>::kSums > 0;
    for_each_used(input, kWhole, [&](const RuleMemory& memory, const ShardSegment& segment, int64_t number) {
      const at::Tensor row = rows_->table.select(0, number);
      const auto update = [&](const RuleMemory& part, const ShardSegment& of) {
        fused_operators::update(kPlace, part, of, row);
      };
      if (!in_8bit_) return update(memory, segment);
      eight_bit_tensors::update(memory, segment, fused_operators::is_active<Rule>(row), update);
    });
  };
  std::visit(run, rule_);
}

}  // namespace zero
