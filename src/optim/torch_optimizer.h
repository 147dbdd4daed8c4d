#pragma once
// ShardOptimizer over torch::optim optimizers: every segment is a flat leaf that is a view of the master
// shard while that is borrowed.

#include "optim/shard_optimizer.h"

namespace zero {

/// The rate and the state of one probe optimizer; see base_lr and optimizer_state_bytes.
double torch_base_lr(const TorchOptimizer& spec);
std::optional<int64_t> torch_state_bytes(const TorchOptimizer& spec);

class TorchShardOptimizer : public ShardOptimizer {
 public:
  /// Arguments as make_shard_optimizer's, already checked.
  TorchShardOptimizer(const TorchOptimizer& spec, std::vector<ParameterGroup> groups, StateStore& states,
                      std::vector<OptimizerShard> shards, int parameters);

  void step(const StepInput& input) override;
  std::vector<std::string> state_names() const override;
  std::vector<int64_t> parameter_steps() const override { return steps_; }
  void set_parameter_steps(std::span<const int64_t> steps) override;

 private:
  struct Shard {
    OptimizerShard given;
    std::vector<at::Tensor> leaves;  // one for each segment; empty but while the shard is borrowed
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };

  Shard make_shard(const TorchOptimizer& spec, OptimizerShard given) const;
  StateStore::Lease borrow(const Shard& shard) const;
  std::vector<at::Tensor> state_views(const StateStore::Lease& lease, const ShardSegment& segment) const;
  /// Leaves and known state become views of what is lent, and let go of it.
  void attach(Shard& shard, const StateStore::Lease& lease) const;
  void detach(Shard& shard) const;
  void set_rates(Shard& shard, const StepInput& input) const;
  /// Scaled copies, of segments that are used.
  void set_gradients(Shard& shard, const StepInput& input) const;
  void require_known_state() const;

  std::vector<ParameterGroup> groups_;
  StateStore& states_;
  std::vector<Shard> shards_;
  std::vector<int64_t> steps_;      // by parameter
  std::vector<std::string> names_;  // of the state tensors
  bool known_state_ = false;
  std::string type_;
};

}  // namespace zero
