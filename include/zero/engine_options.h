#pragma once
// What an engine is told, and what a plan is made from. No tensors: types may be given as Dtype or, with
// zero/engine.h, as LibTorch's.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zero/dtype.h"
#include "zero/loss_scale.h"
#include "zero/lr_schedule.h"
#include "zero/parameter_group.h"
#include "zero/parameter_part.h"
#include "zero/shard_unit.h"
#include "zero/tier.h"

namespace zero {

class InitialValues;

struct EngineOptions {
  // 0..3: what is sharded (placement.h). The same bits where a step has one micro-batch; of several, stages 0
  // and 1 add up in another order than 2 and 3.
  int stage = 0;

  // What changes results.
  // Compute type of floating parameters, fp16 with loss_scaling where they train; unset: each keeps its own.
  std::optional<DtypeOption> dtype = {};
  std::optional<DtypeOption> buffer_dtype = {};  // of floating buffers; unset: `dtype`, or their own
  int accumulation_steps = 1;  // micro-batches per optimizer step; gradients are averaged over them
  // Stages 2 and 3 add up micro-batches on each rank, as 0 and 1 do, and reduce after the last: the bits of
  // these, less traffic, and memory for whole sums. A pipeline does so.
  bool reduce_once = false;
  double gradient_clipping = 0;  // global L2 norm; 0: off
  // backward() multiplies losses, and what is seen of gradients is divided by it again. With it step() waits
  // for the device, and a skipped step says where its gradients were not finite.
  std::optional<LossScaling> loss_scaling = {};
  std::vector<ParameterGroup> groups = {};  // learning rate and decay by name pattern
  std::optional<LrSchedule> schedule = {};  // unset: the optimizer's rate, or what set_learning_rate() says
  // Gradients on the wire; sums are fp32 whatever it is. Unset: the parameters' type where gradients travel
  // as autograd made them, which loses nothing; fp32 where sums of several travel, several types, or what
  // gradient_predivide_factor has changed.
  std::optional<DtypeOption> communication_dtype = {};
  DtypeOption accumulation_dtype = Dtype::f32;  // of summed gradients between micro-batches
  // bf16 parameters have no master: an update is computed in fp32 and rounded to bf16 up or down at random,
  // up with the probability of the part that is cut off, so that the mean is exact. The random bits depend on
  // rounding_seed, the parameter's name and number of steps, and the element's place in it alone: the same
  // for any number of ranks, every stage and tier. Checkpoints hold bf16. Ranks on CPU, rules of ours only.
  bool stochastic_rounding = false;
  uint64_t rounding_seed = 0;
  // Globs over full names: these parameters are fp32 where `dtype` is less, and so is what they are used for.
  // An operator of the forward that reads one is computed in fp32, its arguments made fp32 and its results
  // `dtype` again, unless they were fp32 before (wide_operators.h). Writing into an argument that is not fp32
  // is Unsupported there.
  std::vector<std::string> fp32_parameters = {};
  // LibTorch's autocast around every forward: parameters keep their type (fp32), operators of its list
  // compute in bf16 or fp16 (with loss_scaling). Weights are cast at each use; nothing is cached.
  std::optional<DtypeOption> autocast = {};
  std::shared_ptr<const InitialValues> initial_values =
      {};  // instead of the module's own; read at construction only
  // Take rank 0's initial values. Off: all ranks built the same ones, of which each keeps its part; only
  // replicas of a shard take the first one's bits.
  bool broadcast_initial_values = true;

  // On a mesh with axes beside "dp": what this rank's module holds of parameters, by name. Of one that is not
  // named it holds all, as the ranks along all those axes do. So each element counts once in the gradient
  // norm.
  std::map<std::string, ParameterPart> parts = {};
  // Called at the beginning of each forward; what it returns is kept to the forward's end. TensorParallel's.
  std::function<std::shared_ptr<void>()> around_forward = {};

  // What changes results by rounding only.
  double gradient_predivide_factor = 1;  // divides gradients before they travel, multiplied back afterwards
  // bf16 parameters: keep of the fp32 master only the 16 bits that the parameter lacks, which is half the
  // memory. A master half way above an even bf16 value moves by one fp32 unit in the last place. Off: a whole
  // fp32 copy, as a TorchOptimizer always gets.
  bool split_master = true;
  int shard_group_ranks = 0;  // hybrid: shard inside groups of so many ranks; 0: over all. Not at stage 0
  // Parameters outside ModuleLists are grouped up to this size, elements. It decides which rank holds what,
  // and so the order in which the squares of the gradient norm are added.
  int64_t group_numel = 4LL << 20;
  ShardUnit shard_unit = ShardUnit::Bucket;  // decides the same
  // Stage 3: parameters of fewer elements are units of their own, which stay resident from their first use to
  // the end of a step, beside the budget; of them the first ones, up to persistent_total_numel elements.
  int64_t persistent_numel = 0;
  int64_t persistent_total_numel = INT64_MAX;
  // On CPU, operators of any model that LibTorch computes slowly are computed by kernels of ours, with values
  // that agree to rounding (cpu_operators.h). Off: LibTorch's bits.
  bool cpu_operators = true;

  // What changes memory and speed only; results are the same bits.
  int64_t budget_bytes = -1;  // stage 3: slabs resident at a time; -1: the three largest; INT64_MAX: all
  int64_t prefetch_bytes = 256LL << 20;  // slabs gathered ahead of use
  // Elements per reduce-scatter; at most 2^21 where the ranks share memory, which has no latency to make up
  // for.
  int64_t reduce_bucket_numel = 16LL << 20;
  bool overlap = true;  // false: wait for each collective at once (to compare and to debug)
  // Ranks that share memory keep one copy of the parameters between them, whatever the budget; at stage 0 of
  // everything that would be replicated: it is stage 1 there.
  bool share_parameters = true;
  // Of a weight that is an embedding and an output layer too, the embedding's gradient is its rows, added in
  // place. Off: as autograd has it, two matrices and their sum.
  bool row_gradients = true;
  // Stage 3: 0..1, the share of the elements that stay resident in the same way, in whole units, the first
  // ones first.
  double gathered_ratio = 0;
  // Where each unit's states are while nobody uses them: masters and optimizer states anywhere, others on the
  // device so far. States on disk pass through memory a piece at a time when the optimizer steps.
  StateTiers tiers = {};
  // The same of single units, by their names in the plan, whatever `tiers` and the shares of `offload` say.
  std::map<std::string, StateTiers> unit_tiers = {};
  OffloadOptions offload = {};
};

}  // namespace zero
