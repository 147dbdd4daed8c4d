#pragma once
// ShardOptimizer over our own update rules.

#include "optim/rules.h"
#include "zero/optimizer.h"

namespace zero {

/// How updates run: kernels for CPU memory; at:: operators for any device.
enum class Execution : uint8_t { kernels, operators };

class RuleOptimizer : public ShardOptimizer {
 public:
  /// Arguments as make_shard_optimizer's, already checked.
  RuleOptimizer(RuleSpec spec, std::vector<ParameterGroup> groups, std::vector<OptimizerShard> shards,
                int parameters, Execution execution);

  void step(const StepInput& input) override;
  std::vector<OptimizerState> state() override;
  std::vector<int64_t> parameter_steps() const override { return steps_; }
  void set_parameter_steps(std::span<const int64_t> steps) override;

 private:
  struct Shard {
    OptimizerShard given;
    std::vector<at::Tensor> state;  // [shard_numel] fp32 each, in the order of names_
    bool copies = false;            // given.parameter is other memory than the master
  };

  Rates rates_of(const ShardSegment& segment, const StepInput& input) const;
  void update_by_kernels(const Shard& shard, const ShardSegment& segment, const Scalars& scalars) const;
  void update_by_operators(const Shard& shard, const ShardSegment& segment, const Scalars& scalars) const;

  RuleSpec spec_;
  std::vector<ParameterGroup> groups_;
  std::vector<std::string> names_;
  std::vector<Shard> shards_;
  std::vector<int64_t> steps_;  // by parameter
  Execution execution_;
};

/// Checks new step counts: one for each parameter, none negative. Throws Usage.
void check_steps(std::span<const int64_t> steps, size_t parameters);

}  // namespace zero
