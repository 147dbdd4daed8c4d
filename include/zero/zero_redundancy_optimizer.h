#pragma once
// Stage 1 for those who only want to wrap an optimizer: their module, their loop, only step() changes.
//
//   zero::ZeroRedundancyOptimizer optimizer(model->parameters(), zero::AdamW{.lr = 3e-4}, {}, mesh);
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();     // averages gradients over ranks, clips, updates this rank's shard, gathers the
//   parameters
//
// The source of the idea: ZeRO-1 (arXiv 1910.02054); torch.distributed's ZeroRedundancyOptimizer and AWS
// Neuron's wrapper have the same use; docs/zero_redundancy_optimizer.md sets Neuron's options beside these.
// LibTorch's C++ API has no DistributedDataParallel, so step() also averages the gradients.

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zero/engine_options.h"
#include "zero/mesh.h"
#include "zero/optimizer.h"
#include "zero/plan.h"
#include "zero/step_result.h"
#include "zero/torch_dtype.h"

namespace zero {

struct ZeroRedundancyOptions {
  double gradient_clipping = 0;  // global L2 norm over all ranks; 0: off
  std::optional<LrSchedule> schedule = {};
  std::vector<ParameterGroup> groups = {};       // by patterns over the parameters' names
  DtypeOption communication_dtype = Dtype::f32;  // gradients on the wire; sums are fp32
  int64_t reduce_bucket_numel = 16LL << 20;      // elements per reduce-scatter
  bool broadcast_initial_values = true;          // take rank 0's parameters at construction
  // fp32: half-precision parameters get fp32 masters. bf16: bf16 parameters have none, and updates are
  // rounded stochastically (EngineOptions::stochastic_rounding). Moments are fp32 either way.
  DtypeOption optimizer_dtype = Dtype::f32;
  uint64_t rounding_seed = 0;  // of that rounding
  int shard_group_ranks = 0;   // shards inside groups of so many ranks, replicated across; 0: over all
  // Gradients are added up in fp32 as soon as autograd has made one, and .grad() is freed at once: of several
  // backwards before a step() nothing is lost to half precision. 4 bytes an element, until zero_grad().
  bool accumulate_in_fp32 = false;
  // Off: checkpoints hold parameters in their own type, and load() makes the masters of them.
  bool save_masters = true;
  // Shards, masters and states come with the first call that needs them, not at construction, which then
  // sends nothing: parameters may be cast, moved or replaced before. All ranks must hold the same values when
  // the first gradients are made.
  bool lazy_init = false;
};

class ZeroRedundancyOptimizer {
 public:
  /// Takes over the memory of `parameters` (dense, on the mesh's device; those that need no gradient are left
  /// alone); their values stay readable and writable at all times. Any OptimizerSpec, a TorchOptimizer too.
  /// Names are "0", "1", ... in the order of those that are trained. Collective over the mesh's "dp" axis,
  /// unless lazy_init. Throws as Engine's constructor does.
  ZeroRedundancyOptimizer(const std::vector<at::Tensor>& parameters, OptimizerSpec optimizer,
                          ZeroRedundancyOptions options, Mesh mesh);
  /// The same with names, for groups, checkpoints and messages: a module's named_parameters().pairs().
  ZeroRedundancyOptimizer(const std::vector<std::pair<std::string, at::Tensor>>& named,
                          OptimizerSpec optimizer, ZeroRedundancyOptions options, Mesh mesh);
  ~ZeroRedundancyOptimizer();
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  /// One step with the parameters' .grad(), or what accumulate_in_fp32 has added up, which is left as it is.
  /// A parameter without one on every rank is skipped. Values that were written into the parameters since the
  /// last step are taken over first (all ranks must write the same). Collective.
  StepResult step();
  /// Drops all .grad() and what was added up of them.
  void zero_grad();

  /// Base rate of the following steps; Usage error with a schedule.
  void set_learning_rate(double lr);
  /// Bytes of optimizer state and master copies on this rank; 0 before a lazy one is made.
  int64_t state_bytes() const;
  /// Makes what lazy_init has put off. Collective.
  void initialise();
  /// Throws Usage before a lazy one is made.
  const Plan& plan() const;

  /// As Engine::save and load: parameters, states and the number of steps, for any number of ranks; load()
  /// returns the metadata. Buffers are the module's affair. Collective.
  std::filesystem::path save(const std::filesystem::path& directory, const std::string& metadata = "{}",
                             int keep_last = 0);
  std::string load(const std::filesystem::path& checkpoint);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero
