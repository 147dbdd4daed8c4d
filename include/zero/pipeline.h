#pragma once
// Pipeline parallelism: a model cut into stages, which micro-batches go through one after the other while
// other ranks do the same with other micro-batches.
//
//   torch::nn::Sequential net(...);                                  // of 6 elements, the same on all ranks
//   zero::MeshOptions axes{.axes = {{"pp", 2}, {"dp", -1}}};
//   zero::Pipeline pipeline(*net, zero::stages_of(*net, {3, 3}), zero::AdamW{}, {.stage = 2},
//                           {.micro_batches = 8}, zero::Mesh::from_environment(axes));
//   pipeline.train([&](int i) { return zero::StageTensors{inputs[i]}; },
//                  [&](const zero::StageTensors& out, int i) { return loss(out[0], targets[i]); });
//   pipeline.step();
//
// What a rank holds of the module, its stages', is sharded over "dp" by an Engine. A schedule is a table of
// actions that is proved free of deadlock before it runs (src/pipeline). Gradients are added up in the order
// of the micro-batches in fp32 and reduced once, after the last: under every schedule, and whatever the
// number of stages, a step has the bits of one rank that accumulates as many micro-batches (with several
// ranks along "dp": of that many ranks without a pipeline, at stage 0 or 1).

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zero/engine.h"

namespace torch::nn {
class Module;
class SequentialImpl;
}  // namespace torch::nn

namespace zero {

/// What flows from one stage to the next: dense tensors on the mesh's device, of at most 8 dimensions, at
/// most 12 of them. Their number, shapes and types may differ from one micro-batch to the next. Those that
/// need a gradient get one back.
using StageTensors = std::vector<at::Tensor>;

/// Part of a model's forward.
struct PipelineStage {
  /// Patterns of the names of the module's parameters and buffers that `forward` uses ("layers.3.*"). A
  /// parameter of several stages is tied: each holds it, their gradients are added from the last stage to the
  /// first, and it counts once in norms and checkpoints.
  std::vector<std::string> parameters;
  /// From what the stage before gave (the first: the micro-batch's input) to what the next one, or the loss,
  /// takes, of micro-batch `index`. Uses parameters of the module's that `parameters` match, and no others.
  std::function<StageTensors(const StageTensors& inputs, int index)> forward;
};

/// Neighbouring elements of a Sequential of one tensor: `counts[s]` for stage s, all of them together.
/// Throws Config where the counts do not add up. The module must outlive the stages.
std::vector<PipelineStage> stages_of(torch::nn::SequentialImpl& module, const std::vector<int64_t>& counts);

/// The scalar loss of micro-batch `index`, by a module's own forward: one function of any operators. Every
/// rank calls it, of the same micro-batches, at least twice for each: its operators must depend on shapes and
/// on tensors that no parameter leads to, not on values that other stages compute.
using WholeForward = std::function<at::Tensor(int index)>;

/// The parts that a module is cut between.
struct PipelineUnits {
  /// Of each unit patterns of the names of its parameters and buffers, units in the order in which the
  /// forward uses them. Empty: each element of the module's lists and each other child is one.
  std::vector<std::vector<std::string>> patterns = {};
  /// Units of each stage. Empty: so that the slowest stage's operations are least.
  std::vector<int64_t> counts = {};
};

struct PipelineOptions {
  int micro_batches = 1;          // of a step: any number, fewer than stages too
  std::string schedule = "1f1b";  // or gpipe, interleaved, zb-h1, zb-h2, zb-v, search: `zero pipeline`
  int chunks = 2;                 // interleaved: stages a rank
  double kept_micro_batches = 0;  // zb-v, search: whose activations a rank may keep; 0: as many as ranks
  // Where set, the default generator begins at a number that follows from this one, the step, the place along
  // "dp", the micro-batch and the stage before each stage's forward: dropout does not depend on the schedule.
  // Unset: the generator is left alone, and draws depend on the order of a rank's forwards.
  std::optional<uint64_t> seed = {};
};

class Pipeline {
 public:
  /// Of micro-batch `index`: what the first stage takes. Called on the first stage's rank alone.
  using Input = std::function<StageTensors(int index)>;
  /// The scalar loss of micro-batch `index`, from the last stage's result. Called on the last stage's rank
  /// alone. May use parameters of the last stage.
  using Loss = std::function<at::Tensor(const StageTensors& result, int index)>;

  /// `stages`: as many as the ranks along "pp", or times the chunks of an interleaved schedule (zb-v: times
  /// 2), in order; the same on all ranks. `module`: whole on every rank, best built under lazily(), whose
  /// parameters of other stages then never get memory. options.accumulation_steps follows from
  /// `pipeline.micro_batches`. Collective. Throws Config for stages that do not fit the mesh, and for
  /// parameters that no stage uses.
  Pipeline(torch::nn::Module& module, std::vector<PipelineStage> stages, const OptimizerSpec& optimizer,
           EngineOptions options, const PipelineOptions& pipeline, const Mesh& mesh);
  /// Of a module that stays as it is, whose forward is not taken apart: each stage runs all of `forward`,
  /// computes the operators of its own units, knows of those before it only the shapes, and leaves it, by an
  /// exception, behind its last operator. A stage begins where the fewest bytes cross between its units'
  /// operators and those of the units before; tensors may skip stages. Calls `forward(0)` for its shapes.
  /// Throws Config for units that do not fit, Unsupported for what only values could tell (item(),
  /// nonzero()), by the operator's name. docs/pipeline.md has the rules.
  Pipeline(torch::nn::Module& module, const WholeForward& forward, const PipelineUnits& units,
           const OptimizerSpec& optimizer, EngineOptions options, const PipelineOptions& pipeline,
           const Mesh& mesh);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  /// Forwards and backwards of all micro-batches of a step, as the schedule has them. Returns their losses,
  /// fp64 [micro_batches] on the mesh's device, on every rank of the pipeline. Collective.
  at::Tensor train(const Input& input, const Loss& loss);
  /// Of a pipeline of a whole forward; called on every rank. Without PipelineOptions::seed, random numbers
  /// are those of one process that runs the micro-batches in order.
  at::Tensor train(const WholeForward& forward);
  /// Averages over micro-batches and "dp", clips by the norm of all stages, updates. After train().
  /// Collective.
  StepResult step();
  /// Forwards alone, without gradient, of any number of micro-batches: their losses as train() returns them.
  at::Tensor evaluate(int micro_batches, const Input& input, const Loss& loss);
  at::Tensor evaluate(int micro_batches, const WholeForward& forward);

  /// Of the last stage's result, what is given to all ranks. Called on the last stage's rank alone. May use
  /// parameters of the last stage.
  using Output = std::function<StageTensors(const StageTensors& result)>;
  /// One forward of `input(0)`, without gradient: the last stage's result, or what `output` makes of it, on
  /// every rank of the pipeline, with the limits of StageTensors. Its shapes need not be known before. No
  /// parameter leaves its stage. Collective.
  StageTensors infer(const Input& input, const Output& output = {});
  /// Of a pipeline of a whole forward, which here may give one tensor of any shape.
  at::Tensor infer(const WholeForward& forward);

  /// Of this rank's parameters: for saving, loading, learning rates. Its forward() and backward() are the
  /// pipeline's to call.
  Engine& engine();
  const Engine& engine() const;
  int stage_count() const;
  /// Of this rank, by chunk.
  std::vector<int> own_stages() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace zero
