#pragma once
// A few parameters cut into shards by hand, beside the same parameters as ordinary leaves for torch::optim.

#include <torch/types.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "optim/shard_optimizer.h"
#include "optim/split_master.h"

namespace zero::testing {

/// One shard's tensors, which the test keeps, and what the optimizer is told of it.
struct TestShard {
  at::Tensor master, gradient, parameter;
  std::vector<ShardSegment> segments;
};

struct TestState {
  std::string name;
  int shard;
  at::Tensor values;
};

/// An optimizer with a store of its own that lends the test's tensors.
class TestOptimizer {
 public:
  template <class Make>
  TestOptimizer(const std::vector<TestShard>& shards, Make make)
      : states_(std::make_unique<StateStore>()), shards_(static_cast<int>(shards.size())) {
    std::vector<OptimizerShard> given;
    for (int i = 0; i < shards_; ++i) {
      const TestShard& shard = shards[static_cast<size_t>(i)];
      for (const auto& [kind, tensor] : {std::pair{kMasterState, shard.master},
                                         {kGradientState, shard.gradient},
                                         {kParameterState, shard.parameter}})
        if (tensor.defined()) states_->adopt(i, kind, tensor);
      given.push_back({.unit = i, .segments = shard.segments});
    }
    optimizer_ = make(*states_, std::move(given));
  }
  /// So that tests read as if it were one.
  ShardOptimizer* operator->() const { return optimizer_.get(); }
  ShardOptimizer& operator*() const { return *optimizer_; }
  StateStore& states() const { return *states_; }

  /// Copies.
  std::vector<TestState> state() const {
    std::vector<TestState> all;
    for (int i = 0; i < shards_; ++i)
      for (const std::string& name : optimizer_->state_names())
        all.push_back(
            {name, i, states_->lend(i, {std::string_view(name)}, StateStore::Use::Read)[name].clone()});
    return all;
  }
  void set_state(const std::vector<TestState>& values) const {
    for (const TestState& one : values)
      at::Tensor(states_->lend(one.shard, {std::string_view(one.name)}, StateStore::Use::Write)[one.name])
          .copy_(one.values);
  }

 private:
  std::unique_ptr<StateStore> states_;
  int shards_;
  std::unique_ptr<ShardOptimizer> optimizer_;
};

inline TestOptimizer make_test_optimizer(const OptimizerSpec& spec, const std::vector<ParameterGroup>& groups,
                                         const std::vector<TestShard>& shards, int parameters) {
  return {shards, [&](StateStore& states, std::vector<OptimizerShard> given) {
            return make_shard_optimizer(spec, groups, states, std::move(given), parameters);
          }};
}

/// squared_norm() of the test's tensors.
inline double norm_of(const std::vector<TestShard>& shards, double scale, std::span<const char> used) {
  StateStore states;
  std::vector<OptimizerShard> given;
  for (const TestShard& shard : shards) {
    const int unit = static_cast<int>(given.size());
    states.adopt(unit, kMasterState, shard.master);
    states.adopt(unit, kGradientState, shard.gradient);
    if (shard.parameter.defined()) states.adopt(unit, kParameterState, shard.parameter);
    given.push_back({.unit = unit, .segments = shard.segments});
  }
  return squared_norm(states, given, scale, used);
}

/// Parameters of these sizes; shard 0 holds the first two (with padding between and after), shard 1 the
/// others.
struct OptimizerModel {
  static constexpr int64_t kSizes[] = {37, 70001, 16, 5, 0};
  static constexpr int kParameters = 5;

  std::vector<at::Tensor> plain;  // leaves
  std::vector<TestShard> shards;
  std::vector<char> used = std::vector<char>(kParameters, 1);

  explicit OptimizerModel(at::ScalarType parameter = at::kFloat, at::ScalarType gradient = at::kFloat,
                          std::vector<int> groups = std::vector<int>(kParameters, 0)) {
    shards.resize(2);
    for (int i = 0; i < kParameters; ++i) {
      auto& shard = shards[i < 2 ? 0 : 1];
      const int64_t begin = shard.segments.empty() ? 0 : shard.segments.back().end + 3;
      shard.segments.push_back({.name = "p" + std::to_string(i),
                                .parameter = i,
                                .group = groups[i],
                                .begin = begin,
                                .end = begin + kSizes[i],
                                .counted_begin = begin,
                                .counted_end = begin + kSizes[i]});
    }
    at::manual_seed(7);
    for (auto& shard : shards) {
      const int64_t numel = shard.segments.back().end + 11;
      shard.master = at::zeros({numel});
      shard.gradient = at::zeros({numel}, gradient);
      for (const auto& segment : shard.segments) {
        at::Tensor values = at::randn({segment.numel()});
        shard.master.slice(0, segment.begin, segment.end).copy_(values);
        plain.push_back(values.clone().set_requires_grad(true));
      }
      shard.parameter = parameter == at::kFloat ? shard.master : shard.master.to(parameter);
    }
  }

  /// Masters become what their bf16 parameters lack.
  void split_masters() {
    for (auto& shard : shards) {
      const at::Tensor remainder = at::zeros_like(shard.master, kRemainderType);
      split_master(shard.master, shard.parameter, remainder);
      shard.master = remainder;
    }
  }
  /// fp32 masters of a shard, split or not.
  static at::Tensor masters(const TestShard& shard) {
    if (!is_remainder(shard.master)) return shard.master;
    const at::Tensor joined = at::empty_like(shard.master, at::kFloat);
    join_master(shard.parameter, shard.master, joined);
    return joined;
  }

  const ShardSegment& segment(int parameter) const {
    return parameter < 2 ? shards[0].segments[parameter] : shards[1].segments[parameter - 2];
  }
  at::Tensor slice(const at::Tensor& flat, int parameter) const {
    return flat.slice(0, segment(parameter).begin, segment(parameter).end);
  }
  const TestShard& shard_of(int parameter) const { return shards[parameter < 2 ? 0 : 1]; }
  at::Tensor master(int parameter) const { return slice(masters(shard_of(parameter)), parameter); }

  /// New random gradients of `step`, times 1 / scale in the shards; undefined for unused parameters of
  /// `plain`.
  void set_gradients(int step, double scale) {
    at::NoGradGuard no_grad;
    at::manual_seed(100 + step);
    for (int i = 0; i < kParameters; ++i) {
      const at::Tensor drawn = at::randn({kSizes[i]}) * (i + 1);
      const at::Tensor raw = slice(shard_of(i).gradient, i).copy_(drawn / scale);
      plain[i].mutable_grad() = used[i] ? raw.to(at::kFloat) * scale : at::Tensor();
    }
  }

  /// Largest |a - b| / max(|b|, 1) over all parameters.
  double distance() const {
    double worst = 0;
    for (int i = 0; i < kParameters; ++i) {
      if (kSizes[i] == 0) continue;
      const at::Tensor difference =
          (master(i) - plain[i].detach()).abs() / plain[i].detach().abs().clamp_min(1);
      const double largest = difference.max().item<double>();
      if (!(largest <= worst)) worst = largest;  // NaN counts as far away
    }
    return worst;
  }
};

}  // namespace zero::testing
