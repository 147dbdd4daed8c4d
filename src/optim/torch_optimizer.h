#pragma once
// ShardOptimizer over torch::optim optimizers: every segment is a flat leaf that is a view of the master
// shard.

#include "zero/optimizer.h"

namespace zero {

/// The rate and the state of one probe optimizer; see base_lr and optimizer_state_bytes.
double torch_base_lr(const TorchOptimizer& spec);
std::optional<int64_t> torch_state_bytes(const TorchOptimizer& spec);

class TorchShardOptimizer : public ShardOptimizer {
 public:
  /// Arguments as make_shard_optimizer's, already checked.
  TorchShardOptimizer(const TorchOptimizer& spec, std::vector<ParameterGroup> groups,
                      std::vector<OptimizerShard> shards, int parameters);

  void step(const StepInput& input) override;
  std::vector<OptimizerState> state() override;
  std::vector<int64_t> parameter_steps() const override { return steps_; }
  void set_parameter_steps(std::span<const int64_t> steps) override;

 private:
  struct Shard {
    OptimizerShard given;
    std::vector<at::Tensor> leaves;  // one for each segment
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    std::vector<at::Tensor>
        state;  // [shard_numel] fp32 each; the optimizer's own state tensors are views of these
    bool copies = false;
  };

  Shard make_shard(const TorchOptimizer& spec, OptimizerShard given) const;
  static std::vector<at::Tensor> state_views(const Shard& shard, size_t segment);
  void restore_shard(Shard& shard) const;
  void set_rates(Shard& shard, const StepInput& input) const;
  void set_gradients(Shard& shard, const StepInput& input) const;
  void require_known_state() const;

  std::vector<ParameterGroup> groups_;
  std::vector<Shard> shards_;
  std::vector<int64_t> steps_;      // by parameter
  std::vector<std::string> names_;  // of the state tensors
  bool known_state_ = false;
  std::string type_;
};

}  // namespace zero
