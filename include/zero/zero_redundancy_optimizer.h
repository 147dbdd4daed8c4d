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
// Neuron's wrapper have the same use. LibTorch's C++ API has no DistributedDataParallel, so step() also
// averages the gradients.

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "zero/engine.h"

namespace zero {

struct ZeroRedundancyOptions {
  double gradient_clipping = 0;  // global L2 norm; 0: off
  std::optional<LrSchedule> schedule = {};
  DtypeOption communication_dtype = Dtype::f32;  // gradients on the wire; sums are fp32
  int64_t reduce_bucket_numel = 16LL << 20;      // elements per reduce-scatter
  bool broadcast_initial_values = true;          // take rank 0's parameters at construction
};

class ZeroRedundancyOptimizer {
 public:
  /// Takes over the memory of `parameters` (dense, on the mesh's device; those that need no gradient are left
  /// alone); their values stay readable and writable at all times. Any OptimizerSpec, a TorchOptimizer too.
  /// Half-precision parameters get an fp32 master copy. Collective over the mesh's "dp" axis. Throws as
  /// Engine's constructor does.
  ZeroRedundancyOptimizer(const std::vector<at::Tensor>& parameters, OptimizerSpec optimizer,
                          ZeroRedundancyOptions options, Mesh mesh);
  ~ZeroRedundancyOptimizer();
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  /// One step with the parameters' .grad(), which is left as it is. A parameter without .grad() on every rank
  /// is skipped. Values that were written into the parameters since the last step are taken over first (all
  /// ranks must write the same). Collective.
  StepResult step();
  /// Drops all .grad().
  void zero_grad();

  /// Base rate of the following steps; Usage error with a schedule.
  void set_learning_rate(double lr);
  /// Bytes of optimizer state and master copies on this rank.
  int64_t state_bytes() const;
  const Plan& plan() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero
