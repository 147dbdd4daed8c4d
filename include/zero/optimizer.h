#pragma once
// Optimizers on shards. An optimizer sees flat fp32 pieces of parameters and never asks how they were cut.

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace zero {

/// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), torch::optim::AdamW's arithmetic.
struct AdamW {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool bias_correction = true;
};
/// Adam with L2 decay added to the gradient (Kingma and Ba, arXiv 1412.6980).
struct Adam {
  double lr = 1e-3;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool bias_correction = true;
};
struct SGD {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};
/// Lion (Chen et al., arXiv 2302.06675).
struct Lion {
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.99;
  double weight_decay = 0;
};
/// Any element-wise torch::optim optimizer: `make` builds it over one group per ParameterGroup of flat 1-D fp32 leaves.
struct TorchOptimizer {
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)> make;
};
using OptimizerSpec = std::variant<AdamW, Adam, SGD, Lion, TorchOptimizer>;

/// Parameters whose name matches `pattern` (shell glob: * ? [..] over the full dotted name) take these values instead of the optimizer's.
/// The first matching group wins; parameters that match none are group 0, the default.
struct ParameterGroup {
  std::string pattern;
  std::optional<double> lr;            // absolute
  double lr_scale = 1;                 // times the (scheduled) base rate, where lr is not given
  std::optional<double> weight_decay;
};

/// True if the shell glob matches the whole name. Throws Config for an unfinished [.
bool glob_matches(std::string_view pattern, std::string_view name);

/// Group index (0 = default, i + 1 = groups[i]) of every name. Throws Config, naming it, for a pattern that matches no name.
std::vector<int> assign_groups(std::span<const std::string> names, std::span<const ParameterGroup> groups);

/// The part of one parameter that this rank's shard of a unit holds.
struct ShardSegment {
  std::string name;             // the parameter's
  int parameter = 0;            // its index over all units, same on every rank
  int group = 0;                // parameter group
  int64_t begin = 0, end = 0;   // elements inside the shard
  int64_t parameter_begin = 0;  // first element inside the (flattened) parameter
  int64_t numel() const { return end - begin; }
};

/// One unit's shard on this rank. Tensors are 1-D, [shard_numel]; elements outside all segments are padding and stay 0.
struct OptimizerShard {
  at::Tensor master;     // fp32, updated
  at::Tensor gradient;   // fp32 (or the accumulation dtype): raw sum over ranks and micro-batches; read only
  at::Tensor parameter;  // compute dtype; written from master in the same pass. May be `master` itself
  std::vector<ShardSegment> segments;  // ascending, disjoint
};

struct StepInput {
  double gradient_scale = 1;             // times raw gradient: 1 / (ranks * micro-batches * loss scale) * clip coefficient
  double lr = 0;                         // this step's base rate
  std::span<const char> used;            // per parameter index: 0 = it had no gradient on any rank: skipped, as torch does
};

/// A named piece of optimizer state, laid out like the shard it belongs to.
struct OptimizerState {
  std::string name;   // "exp_avg", "exp_avg_sq", "momentum_buffer", ...
  int shard = 0;      // index into the shards given at construction
  at::Tensor values;  // [shard_numel] fp32; writable, for loading
};

/// Updates all shards of one rank. Not thread safe. State is allocated at construction.
class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  /// One step over every used segment. Master, parameter and state change; the gradient does not.
  virtual void step(const StepInput& input) = 0;
  /// Element-wise state for checkpoints and tests.
  virtual std::vector<OptimizerState> state() = 0;
  /// Number of steps each parameter has taken (index over all units). Setting it restores bias correction.
  virtual std::vector<int64_t> parameter_steps() const = 0;
  virtual void set_parameter_steps(std::span<const int64_t> steps) = 0;
};

/// Throws Config for values out of range (lr < 0, beta outside [0, 1), eps < 0, nesterov without momentum ...), naming each.
void validate(const OptimizerSpec& spec);

/// `parameters`: how many parameters all units together have. Throws Unsupported for a torch optimizer whose state it cannot save.
std::unique_ptr<ShardOptimizer> make_shard_optimizer(const OptimizerSpec& spec, std::vector<ParameterGroup> groups,
                                                     std::vector<OptimizerShard> shards, int parameters);

/// Base learning rate of the spec (of a TorchOptimizer: its first group's rate).
double base_lr(const OptimizerSpec& spec);

/// Bytes of state per element beyond master and gradient: 8 Adam, 4 momentum SGD and Lion, 0 plain SGD.
int64_t optimizer_state_bytes(const OptimizerSpec& spec);

/// What clipping did: peers confuse these three, so all are returned.
struct ClipResult {
  double norm_before = 0;   // global L2 norm of the averaged gradient
  double coefficient = 1;   // what every gradient was multiplied by: min(1, max_norm / (norm_before + 1e-6)), as torch
  double norm_after = 0;
};
ClipResult clip_result(double squared_norm, double max_norm);

/// Sum of squares of gradient * scale over the used segments, in fp64, in element order (fixed blocks: same bits for any thread count).
double squared_norm(std::span<const OptimizerShard> shards, double scale, std::span<const char> used);

}  // namespace zero
