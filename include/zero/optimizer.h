#pragma once
// Optimizers on shards. An optimizer sees flat fp32 pieces of parameters and never asks how they were cut.

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "zero/lr_schedule.h"

namespace zero {

/// Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), torch::optim::AdamW's
/// arithmetic.
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
/// Gradient descent with torch::optim::SGD's momentum.
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
/// Any element-wise torch::optim optimizer. `make` is called once for every shard, so that scaled gradients
/// of one unit at a time are enough; it gets one group for the default and one for each ParameterGroup (some
/// may be empty), of flat 1-D fp32 leaves. An optimizer that needs a closure (LBFGS) is Unsupported.
struct TorchOptimizer {
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::optim::OptimizerParamGroup>)>
      make;
};
using OptimizerSpec = std::variant<AdamW, Adam, SGD, Lion, TorchOptimizer>;

/// Parameters whose name matches `pattern` (shell glob: * ? [..] over the full dotted name) take these values
/// instead of the optimizer's. The first matching group wins; parameters that match none are group 0, the
/// default.
struct ParameterGroup {
  std::string pattern;
  std::optional<double> lr = {};  // absolute, and the schedule leaves it alone
  double lr_scale = 1;            // times the (scheduled) base rate, where lr is not given
  std::optional<double> weight_decay = {};
};

/// Throws Config for a pattern with a [ that is never closed, and for a negative or non-finite rate, scale or
/// decay, naming the pattern.
void validate(std::span<const ParameterGroup> groups);

/// Group index (0 = default, i + 1 = groups[i]) of every name. Throws Config, naming it, for a pattern that
/// matches no name.
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

/// One unit's shard on this rank. Tensors are 1-D, [shard_numel]; elements outside all segments are padding
/// and stay 0.
struct OptimizerShard {
  // fp32, updated. Or int16, where `parameter` is bf16: what the master's bits exceed the parameter's by, so
  // that the two together are the master, to one unit in the last place (split_masters_work()).
  at::Tensor master;
  at::Tensor gradient;   // fp32, bf16 or fp16: raw sum over ranks and micro-batches; read only
  at::Tensor parameter;  // fp32, bf16 or fp16; written from master in the same pass. May be `master` itself,
                         // or undefined
  std::vector<ShardSegment> segments;  // ascending, disjoint
};

struct StepInput {
  /// Times the raw gradient: 1 / (ranks * micro-batches * loss scale) * clip coefficient.
  double gradient_scale = 1;
  /// This step's base rate.
  double lr = 0;
  /// By parameter index; 0: it had no gradient on any rank and is skipped, as torch does.
  std::span<const char> used = {};
  /// Instead of the spec's: LrSchedule::betas_at. Unsupported where the optimizer has none.
  std::optional<Betas> betas = {};
};

/// A named piece of optimizer state, laid out like the shard it belongs to.
struct OptimizerState {
  std::string name;   // "exp_avg", "exp_avg_sq", "momentum_buffer", ...
  int shard = 0;      // index into the shards given at construction
  at::Tensor values;  // [shard_numel] fp32; writable, for loading
};

/// Updates all shards of one rank. State is allocated at construction. Not thread safe; a step uses
/// at::get_num_threads() threads, and its bits do not depend on them. On CPU one fused pass per segment,
/// elsewhere at:: operators.
class ShardOptimizer {
 public:
  virtual ~ShardOptimizer() = default;
  /// One step over every used segment. Master, parameter and state change; the gradient does not. An unused
  /// parameter keeps everything: value, moments, step count. Throws Usage before any change if `input` does
  /// not fit.
  virtual void step(const StepInput& input) = 0;
  /// Element-wise state for checkpoints and tests; the tensors stay valid and current. To load: write them,
  /// then set_parameter_steps. Throws Unsupported, naming the type, for a torch optimizer whose state it does
  /// not know.
  virtual std::vector<OptimizerState> state() = 0;
  /// Number of steps each parameter has taken (index over all units, the same on every rank). Setting it
  /// restores bias correction; a parameter set to 0 steps starts afresh and its state becomes zero.
  virtual std::vector<int64_t> parameter_steps() const = 0;
  virtual void set_parameter_steps(std::span<const int64_t> steps) = 0;
};

/// "AdamW", "Adam", "SGD", "Lion", "TorchOptimizer".
std::string_view name_of(const OptimizerSpec& spec);

/// Throws Config for values out of range (lr < 0, beta outside [0, 1), eps < 0, nesterov without momentum
/// ...), naming each.
void validate(const OptimizerSpec& spec);

/// `parameters`: how many parameters all units together have. Throws Config for bad values, Usage for shards
/// that break the contract above, Unsupported for an optimizer or dtype it cannot run.
std::unique_ptr<ShardOptimizer> make_shard_optimizer(const OptimizerSpec& spec,
                                                     std::vector<ParameterGroup> groups,
                                                     std::vector<OptimizerShard> shards, int parameters);

/// Base learning rate of the spec (of a TorchOptimizer: its first group's rate; calls `make` with one small
/// leaf).
double base_lr(const OptimizerSpec& spec);

/// Whether shards may give the optimizer masters as int16; a torch optimizer wants whole ones.
bool split_masters_work(const OptimizerSpec& spec);

/// Bytes of state per element beyond master and gradient: 8 Adam, 4 momentum SGD and Lion, 0 plain SGD.
/// Nothing for a torch optimizer whose state is not known.
std::optional<int64_t> optimizer_state_bytes(const OptimizerSpec& spec);

/// What clipping did: peers confuse these three, so all are returned.
struct ClipResult {
  double norm_before =
      0;  // global L2 norm of the averaged gradient; inf or NaN if a gradient is: the caller skips the step
  double coefficient =
      1;  // what every gradient was multiplied by: min(1, max_norm / (norm_before + 1e-6)), as torch
  double norm_after = 0;
};
/// `squared_norm`: summed over all ranks. max_norm 0: no clipping. A non-finite norm keeps coefficient 1.
/// Throws Config for a negative or non-finite max_norm.
ClipResult clip_result(double squared_norm, double max_norm);

/// Sum of squares of gradient * scale over the used segments, in fp64: fixed blocks in element order, so the
/// bits do not depend on the number of threads. Not finite if a gradient is not. Contracts as
/// ShardOptimizer::step.
double squared_norm(std::span<const OptimizerShard> shards, double scale, std::span<const char> used);

}  // namespace zero
