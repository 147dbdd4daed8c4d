#include "optim/rule_optimizer.h"

#include <ATen/ATen.h>

#include "compute/parallel.h"
#include "compute/zeros.h"
#include "optim/shards.h"
#include "optim/split_master.h"
#include "zero/error.h"

namespace zero {
namespace {

// Elements a thread takes at least: below this, waking it costs more than it saves.
constexpr int64_t kGrain = 1 << 15;

}  // namespace

RuleOptimizer::RuleOptimizer(RuleSpec spec, std::vector<ParameterGroup> groups,
                             std::vector<OptimizerShard> shards, int parameters, Execution execution)
    : spec_(spec),
      groups_(std::move(groups)),
      names_(state_names(spec)),
      steps_(static_cast<size_t>(parameters), 0),
      execution_(execution) {
  for (auto& given : shards) {
    Shard shard;
    for (size_t i = 0; i < names_.size(); ++i)
      shard.state.push_back(detail::zeros(given.master.numel(), given.master.options().dtype(at::kFloat)));
    shard.copies = !keeps_no_copy(given);
    shard.given = std::move(given);
    shards_.push_back(std::move(shard));
  }
}

Rates RuleOptimizer::rates_of(const ShardSegment& segment, const StepInput& input) const {
  Rates rates{.lr = input.lr,
              .weight_decay = weight_decay_of(spec_),
              .gradient_scale = input.gradient_scale,
              .step = steps_[segment.parameter] + 1,
              .betas = input.betas};
  if (segment.group == 0) return rates;
  const ParameterGroup& group = groups_[segment.group - 1];
  rates.lr = group.lr.value_or(input.lr * group.lr_scale);
  rates.weight_decay = group.weight_decay.value_or(rates.weight_decay);
  return rates;
}

void RuleOptimizer::step(const StepInput& input) {
  check_step(input, steps_.size());
  require(!input.betas || has_betas(spec_), ErrorKind::Unsupported, "ShardOptimizer::step",
          "SGD has no betas for the schedule to move", "set cycle_momentum to false");
  at::NoGradGuard no_grad;
  for (const auto& shard : shards_) {
    for (const auto& segment : shard.given.segments) {
      if (!input.used[segment.parameter] || segment.numel() == 0) continue;
      const Scalars scalars = scalars_of(spec_, rates_of(segment, input));
      if (execution_ == Execution::kernels) {
        update_by_kernels(shard, segment, scalars);
      } else {
        update_by_operators(shard, segment, scalars);
      }
    }
  }
  for (size_t i = 0; i < steps_.size(); ++i) steps_[i] += input.used[i] ? 1 : 0;
}

void RuleOptimizer::update_by_kernels(const Shard& shard, const ShardSegment& segment,
                                      const Scalars& scalars) const {
  kernels::Buffers buffers;
  if (is_remainder(shard.given.master)) {
    buffers.remainder = shard.given.master.mutable_data_ptr<kernels::Remainder>();
  } else {
    buffers.master = shard.given.master.mutable_data_ptr<float>();
  }
  buffers.gradient = shard.given.gradient.const_data_ptr();
  buffers.gradient_type = element_of(shard.given.gradient.scalar_type());
  if (shard.copies) {
    buffers.parameter = shard.given.parameter.mutable_data_ptr();
    buffers.parameter_type = element_of(shard.given.parameter.scalar_type());
  }
  if (!shard.state.empty()) buffers.first = shard.state[0].mutable_data_ptr<float>();
  if (shard.state.size() > 1) buffers.second = shard.state[1].mutable_data_ptr<float>();
  const kernels::KernelSet& set = kernels::best_kernels();
  parallel_over(piece(shard.given.master, segment), kGrain, [&](int64_t begin, int64_t end) {
    update(set, kernels::advance(buffers, segment.begin + begin), scalars, end - begin);
  });
}

void RuleOptimizer::update_by_operators(const Shard& shard, const ShardSegment& segment,
                                        const Scalars& scalars) const {
  Piece tensors;
  tensors.master = piece(shard.given.master, segment);
  tensors.gradient = piece(shard.given.gradient, segment);
  if (shard.copies) tensors.parameter = piece(shard.given.parameter, segment);
  if (!shard.state.empty()) tensors.first = piece(shard.state[0], segment);
  if (shard.state.size() > 1) tensors.second = piece(shard.state[1], segment);
  update(tensors, scalars);
}

std::vector<OptimizerState> RuleOptimizer::state() {
  std::vector<OptimizerState> all;
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (size_t i = 0; i < names_.size(); ++i)
      all.push_back({names_[i], static_cast<int>(s), shards_[s].state[i]});
  }
  return all;
}

void RuleOptimizer::set_parameter_steps(std::span<const int64_t> steps) {
  check_steps(steps, steps_.size());
  steps_.assign(steps.begin(), steps.end());
  for (const auto& shard : shards_) {
    for (const auto& segment : shard.given.segments) {
      if (steps_[segment.parameter] > 0) continue;
      for (const auto& state : shard.state) piece(state, segment).zero_();
    }
  }
}

void check_steps(std::span<const int64_t> steps, size_t parameters) {
  const auto place = "ShardOptimizer::set_parameter_steps";
  require(
      steps.size() == parameters, ErrorKind::Usage, place,
      "got " + std::to_string(steps.size()) + " counts for " + std::to_string(parameters) + " parameters");
  for (const int64_t count : steps) {
    require(count >= 0, ErrorKind::Usage, place, "a count is " + std::to_string(count) + ", expected >= 0");
  }
}

}  // namespace zero
