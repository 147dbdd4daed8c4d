#include "zero/pipeline.h"

#include <ATen/Context.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error_text.h"
#include "base/mix_bits.h"
#include "compute/wait_place.h"
#include "engine/engine_access.h"
#include "mesh/rank_places.h"
#include "plan/fp32_patterns.h"
#include "sharding/model_parameters.h"
#include "stages/checked_table.h"
#include "stages/held_tensor.h"
#include "stages/places.h"
#include "stages/same_values.h"
#include "stages/split_backward.h"
#include "stages/stage_parameters.h"
#include "stages/suspended_stages.h"
#include "stages/tied_sums.h"
#include "tensor/parallel_tensor.h"
#include "zero/error.h"
#include "zero/torch_dtype.h"

namespace zero {
namespace {

using detail::EngineAccess;
using detail::HeldTensor;
using detail::MessageName;
using detail::Places;
using detail::SplitBackward;
using detail::TiedSums;
using pipeline::Action;
using pipeline::Pass;
using Kind = MessageName::Kind;

std::vector<std::string> replicated_axes(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const Axis& axis : mesh.axes())
    if (axis.name != "dp" && axis.name != "pp" && axis.size > 1) names.push_back(axis.name);
  return names;
}

// Of what tells one forward from another.
uint64_t seed_of(std::initializer_list<uint64_t> numbers) {
  uint64_t state = 0;
  for (const uint64_t number : numbers) state = mix_bits(state + number + kGoldenGamma);
  return generator_seed(state);
}

/// What a stage keeps of a micro-batch between its passes: leaves, and what leads back to them.
struct UnderWay {
  std::vector<HeldTensor> inputs, outputs;
  std::unique_ptr<SplitBackward> split;
};

}  // namespace

struct Pipeline::State {
  State(torch::nn::Module& module, std::vector<PipelineStage> the_stages, const OptimizerSpec& optimizer,
        EngineOptions engine_options, const PipelineOptions& pipeline_options, const Mesh& the_mesh,
        std::unique_ptr<detail::SuspendedForward> the_suspended = nullptr);

  // What the last stage gives of its result, of micro-batch `index`.
  using End = std::function<StageTensors(const StageTensors& result, int index)>;

  void run(const Action& action, const Input& input, const End& end);
  std::vector<HeldTensor> forward_alone(int index, const Input& input, const End& end);
  void forward(int stage, int micro_batch, const Input& input, const End& end);
  void backward(int stage, int micro_batch, bool splits);
  void backward_of_weights(int stage, int micro_batch);
  std::vector<HeldTensor> inputs_of(int stage, int index, int name, const Input& input);
  std::vector<HeldTensor> compute(int stage, int micro_batch, const std::vector<HeldTensor>& inputs,
                                  const End& end);
  End noted(const Loss& loss);
  void give_on(const std::vector<HeldTensor>& outputs, int stage, int micro_batch);
  void give_back(const StageTensors& gradients, int stage, int micro_batch);
  at::Tensor shared_losses();
  std::vector<HeldTensor> shared_result(std::vector<HeldTensor> result);
  std::vector<int> own_stages() const;
  void abandon(const char* reason) noexcept;
  template <class Work>
  void together(Work work);

  bool is_last(int stage) const { return stage + 1 == places.shape().stages(); }
  UnderWay& under_way_of(int stage, int micro_batch) { return under_way[{stage, micro_batch}]; }

  std::unique_ptr<detail::SuspendedForward> suspended;  // null: stages are functions of their own
  std::vector<PipelineStage> stages;
  PipelineOptions options;
  Mesh mesh;
  Group group;
  std::shared_ptr<detail::TensorAxis> axis;  // null: the module is not cut over "tp"
  Places places;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<TiedSums> tied;
  std::map<std::pair<int, int>, UnderWay> under_way;  // by stage and micro-batch
  at::Tensor losses;                                  // fp64, by micro-batch; on the last stage's rank
  double loss_scale = 1;                              // of the step under way
  uint64_t pass = 0;                                  // of training, for seeds
};

Pipeline::State::State(torch::nn::Module& module, std::vector<PipelineStage> the_stages,
                       const OptimizerSpec& optimizer, EngineOptions engine_options,
                       const PipelineOptions& pipeline_options, const Mesh& the_mesh,
                       std::unique_ptr<detail::SuspendedForward> the_suspended)
    : suspended(std::move(the_suspended)),
      stages(std::move(the_stages)),
      options(pipeline_options),
      mesh(the_mesh),
      group(detail::group_along_pipeline(mesh)),
      axis(detail::axis_of_module(module)),
      places(detail::checked_table(options, group.size()), group.rank(), group, mesh.device()) {
  const pipeline::Shape& shape = places.shape();
  require(std::ssize(stages) == shape.stages(), ErrorKind::Config, "pipeline",
          std::to_string(stages.size()) + " stages, expected " + std::to_string(shape.stages()) + ": " +
              std::to_string(shape.chunks) + " for each of " + std::to_string(shape.ranks) + " ranks");
  for (const PipelineStage& stage : stages)
    require(stage.forward != nullptr, ErrorKind::Config, "pipeline", "a stage has no forward");
  detail::StageParameters parameters = detail::parameters_of_stages(
      module, stages, shape, group.rank(), replicated_axes(mesh), engine_options.parts);
  engine_options.parts = std::move(parameters.parts);
  if (!engine_options.fp32_parameters.empty())
    engine_options.fp32_parameters = fp32_patterns_of_part(
        engine_options.fp32_parameters, detail::parameters_of(module).spec, parameters.held.spec);
  engine_options.accumulation_steps = options.micro_batches;
  engine_options.reduce_once = true;
  engine = EngineAccess::make(std::move(parameters.held), optimizer, engine_options, mesh);

  detail::EngineState& state = EngineAccess::state(*engine);
  std::vector<int> numbers;
  for (const detail::TiedParameter& one : parameters.tied) {
    const auto& names = state.model.names();
    const auto found = std::find(names.begin(), names.end(), one.name);
    numbers.push_back(found == names.end() ? -1 : static_cast<int>(found - names.begin()));
  }
  detail::require_same_values(state.model, parameters.tied, numbers);
  tied = std::make_unique<TiedSums>(std::move(parameters.tied), std::move(numbers),
                                    scalar_type_of(state.model.plan.accumulation_dtype), places);
  if (!tied->is_empty())
    state.takes_gradient = [sums = tied.get()](int parameter, const at::Tensor& gradient) {
      return sums->take(parameter, gradient);
    };
}

// Of micro-batch `index`, whose messages are called `name`.
std::vector<HeldTensor> Pipeline::State::inputs_of(int stage, int index, int name, const Input& input) {
  if (stage > 0) return places.take({Kind::Activations, stage - 1, name}, stage);
  return detail::held(input(index));
}

std::vector<HeldTensor> Pipeline::State::compute(int stage, int micro_batch,
                                                 const std::vector<HeldTensor>& inputs, const End& end) {
  if (options.seed && at::GradMode::is_enabled())
    at::manual_seed(
        seed_of({*options.seed, pass, static_cast<uint64_t>(mesh.group("dp").rank()),
                 static_cast<uint64_t>(micro_batch), static_cast<uint64_t>(suspended ? 0 : stage)}));
  return engine->forward([&] {
    const StageTensors result = stages[stage].forward(detail::seen(inputs, axis), micro_batch);
    return detail::held(is_last(stage) ? end(result, micro_batch) : result);
  });
}

Pipeline::State::End Pipeline::State::noted(const Loss& loss) {
  return [this, &loss](const StageTensors& result, int micro_batch) {
    const at::Tensor value = loss(result, micro_batch);
    require(value.defined() && value.numel() == 1, ErrorKind::Usage, "pipeline", "a loss is no scalar");
    losses[micro_batch] = value.detach().to(at::kDouble).squeeze();
    return StageTensors{value};
  };
}

void Pipeline::State::give_on(const std::vector<HeldTensor>& outputs, int stage, int micro_batch) {
  if (!is_last(stage)) places.give(outputs, {Kind::Activations, stage, micro_batch}, stage + 1);
}

void Pipeline::State::give_back(const StageTensors& gradients, int stage, int micro_batch) {
  if (stage > 0) places.give(detail::whole(gradients), {Kind::Gradients, stage, micro_batch}, stage - 1);
}

void Pipeline::State::forward(int stage, int micro_batch, const Input& input, const End& end) {
  UnderWay& mine = under_way_of(stage, micro_batch);
  mine.inputs = inputs_of(stage, micro_batch, micro_batch, input);
  mine.outputs = compute(stage, micro_batch, mine.inputs, end);
  give_on(mine.outputs, stage, micro_batch);
}

// With `splits` gradients of weights come later, but for those that other stages wait for.
void Pipeline::State::backward(int stage, int micro_batch, bool splits) {
  UnderWay& mine = under_way_of(stage, micro_batch);
  std::vector<HeldTensor> arrived(1);
  if (!is_last(stage)) arrived = places.take({Kind::Gradients, stage + 1, micro_batch}, stage);
  std::vector<at::Tensor> roots, gradients, leaves;
  std::vector<size_t> leaf_at;
  for (size_t i = 0; i < mine.outputs.size(); ++i) {
    const at::Tensor& output = mine.outputs[i].tensor;
    if (!output.defined() || !output.requires_grad()) continue;
    if (!is_last(stage) && !arrived.at(i).tensor.defined()) continue;
    roots.push_back(output);
    gradients.push_back(is_last(stage) ? at::full_like(output, loss_scale) : arrived[i].tensor);
  }
  for (size_t i = 0; i < mine.inputs.size(); ++i) {
    const at::Tensor& input = mine.inputs[i].tensor;
    if (stage == 0 || !input.defined() || !input.requires_grad()) continue;
    leaves.push_back(input);
    leaf_at.push_back(i);
  }
  const bool later = splits && !tied->gives_early(stage);
  StageTensors back(mine.inputs.size());
  if (!roots.empty())
    EngineAccess::accumulate(*engine, roots, [&] {
      if (!later) return torch::autograd::backward(roots, gradients);
      mine.split = std::make_unique<SplitBackward>(roots, gradients, leaves);
    });
  for (size_t i = 0; i < leaves.size(); ++i)
    back[leaf_at[i]] = mine.split ? mine.split->input_gradients()[i] : leaves[i].grad();
  mine.inputs.clear();
  mine.outputs.clear();
  give_back(back, stage, micro_batch);
  if (!later) tied->pass_on(stage, micro_batch);
  if (!splits) under_way.erase({stage, micro_batch});
}

void Pipeline::State::backward_of_weights(int stage, int micro_batch) {
  UnderWay& mine = under_way_of(stage, micro_batch);
  if (!tied->gives_early(stage)) {
    if (mine.split) EngineAccess::accumulate(*engine, {}, [&] { mine.split->run_weights(); });
    tied->pass_on(stage, micro_batch);
  }
  under_way.erase({stage, micro_batch});
}

// Through this rank's stages; returns what the last of them gave. Names of messages go round: what they were
// given to before has been taken.
std::vector<HeldTensor> Pipeline::State::forward_alone(int index, const Input& input, const End& end) {
  const int name = index % options.micro_batches;
  if (name == 0) places.finish();
  std::vector<HeldTensor> outputs;
  for (const int stage : own_stages()) {
    outputs = compute(stage, index, inputs_of(stage, index, name, input), end);
    give_on(outputs, stage, name);
  }
  return outputs;
}

void Pipeline::State::run(const Action& action, const Input& input, const End& end) {
  const TraceScope span(mesh.trace(), Trace::Row::Compute, to_string(action, places.shape()));
  const int stage = places.stage_of(action);
  switch (action.pass) {
    case Pass::Forward:
      return forward(stage, action.micro_batch, input, end);
    case Pass::Backward:
      return backward(stage, action.micro_batch, /*splits=*/false);
    case Pass::BackwardInput:
      return backward(stage, action.micro_batch, /*splits=*/true);
    case Pass::BackwardWeight:
      return backward_of_weights(stage, action.micro_batch);
  }
}

// The last stage's, on all ranks of the pipeline.
at::Tensor Pipeline::State::shared_losses() {
  const int root = places.shape().rank_of(places.shape().stages() - 1);
  const detail::WaitPlace place("losses of a pipeline");
  if (losses.numel() > 0) group.broadcast(losses, root, "losses").wait();
  return std::exchange(losses, at::Tensor());
}

// What the last stage's rank has, on all ranks of the pipeline.
std::vector<HeldTensor> Pipeline::State::shared_result(std::vector<HeldTensor> result) {
  const pipeline::Shape& shape = places.shape();
  const MessageName name{Kind::Result, shape.stages() - 1, 0};
  if (!places.is_here(name.stage)) return places.take(name, shape.stage_of(group.rank(), 0));
  for (int rank = 0; rank < shape.ranks; ++rank)
    if (rank != group.rank()) places.give(result, name, shape.stage_of(rank, 0));
  return result;
}

std::vector<int> Pipeline::State::own_stages() const {
  const pipeline::Shape& shape = places.shape();
  std::vector<int> own;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) own.push_back(shape.stage_of(group.rank(), chunk));
  std::sort(own.begin(), own.end());
  return own;
}

void Pipeline::State::abandon(const char* reason) noexcept {
  under_way.clear();
  tied->abandon();
  places.abandon();
  if (suspended) suspended->abandon();
  places.follow_table(true);
  EngineAccess::state(*engine).fail_pass(reason);
}

// What fails here is told to the other ranks, who would wait otherwise.
template <class Work>
void Pipeline::State::together(Work work) {
  try {
    work();
  } catch (const Error& error) {
    abandon(error.what());
    if (error.kind() != ErrorKind::Comm) throw;
    fail(ErrorKind::Comm, "", detail::with_places(mesh.axes(), text_without_kind(error)));
  } catch (const std::exception& error) {
    abandon(error.what());
    throw;
  }
}

Pipeline::Pipeline(torch::nn::Module& module, std::vector<PipelineStage> stages,
                   const OptimizerSpec& optimizer, EngineOptions options, const PipelineOptions& pipeline,
                   const Mesh& mesh)
    : state_(std::make_unique<State>(module, std::move(stages), optimizer, std::move(options), pipeline,
                                     mesh)) {}

Pipeline::Pipeline(torch::nn::Module& module, const WholeForward& forward, const PipelineUnits& units,
                   const OptimizerSpec& optimizer, EngineOptions options, const PipelineOptions& pipeline,
                   const Mesh& mesh) {
  // Shapes of other stages' operators do not know of casts.
  require(!options.autocast && options.fp32_parameters.empty(), ErrorKind::Unsupported, "pipeline",
          "fp32_parameters and autocast cast what an unmodified forward computes",
          "give the stages as functions, or train in one type");
  const Group group = detail::group_along_pipeline(mesh);
  const int count = detail::checked_table(pipeline, group.size()).shape.stages();
  auto suspended = detail::suspended_forward(module, forward, units, count, options, mesh);
  std::vector<PipelineStage> stages = detail::stages_of_suspended(*suspended);
  state_ = std::make_unique<State>(module, std::move(stages), optimizer, std::move(options), pipeline, mesh,
                                   std::move(suspended));
}

Pipeline::~Pipeline() = default;

at::Tensor Pipeline::train(const Input& input, const Loss& loss) {
  State& state = *state_;
  detail::require_begun(state.suspended.get());
  at::Tensor losses;
  state.together([&] {
    state.losses =
        at::zeros({state.options.micro_batches}, at::TensorOptions(state.mesh.device()).dtype(at::kDouble));
    state.loss_scale = EngineAccess::scale_losses(*state.engine);
    const State::End end = state.noted(loss);
    for (const Action& action : state.places.own_actions()) state.run(action, input, end);
    EngineAccess::finish(*state.engine, state.tied->totals());
    state.places.finish();
    losses = state.shared_losses();
  });
  state.pass++;
  return losses;
}

StepResult Pipeline::step() {
  StepResult result;
  state_->together([&] { result = state_->engine->step(); });
  return result;
}

at::Tensor Pipeline::evaluate(int micro_batches, const Input& input, const Loss& loss) {
  const at::NoGradGuard no_grad;
  State& state = *state_;
  detail::require_begun(state.suspended.get());
  require(micro_batches >= 0, ErrorKind::Usage, "pipeline", "a negative number of micro-batches");
  at::Tensor losses;
  state.together([&] {
    state.losses = at::zeros({micro_batches}, at::TensorOptions(state.mesh.device()).dtype(at::kDouble));
    state.places.follow_table(false);
    const State::End end = state.noted(loss);
    for (int i = 0; i < micro_batches; ++i) state.forward_alone(i, input, end);
    state.places.finish();
    state.places.follow_table(true);
    losses = state.shared_losses();
  });
  return losses;
}

StageTensors Pipeline::infer(const Input& input, const Output& output) {
  const at::NoGradGuard no_grad;
  State& state = *state_;
  detail::require_begun(state.suspended.get());
  StageTensors result;
  state.together([&] {
    state.places.follow_table(false);
    std::vector<HeldTensor> outputs = state.forward_alone(
        0, input, [&](const StageTensors& of_last, int) { return output ? output(of_last) : of_last; });
    result = detail::seen(state.shared_result(std::move(outputs)), state.axis);
    state.places.finish();
    state.places.follow_table(true);
  });
  return result;
}

namespace {

// What stages of functions take and give of themselves.
StageTensors no_input(int) { return {}; }
at::Tensor own_loss(const StageTensors& result, int) { return result.at(0); }

}  // namespace

at::Tensor Pipeline::train(const WholeForward& forward) {
  detail::SuspendedForward& suspended = detail::begun(state_->suspended.get(), forward, state_->options);
  at::Tensor losses = train(no_input, own_loss);
  suspended.end(state_->options.micro_batches);
  return losses;
}

at::Tensor Pipeline::evaluate(int micro_batches, const WholeForward& forward) {
  detail::SuspendedForward& suspended =
      detail::begun(state_->suspended.get(), forward, {.micro_batches = micro_batches});
  at::Tensor losses = evaluate(micro_batches, no_input, own_loss);
  suspended.end(micro_batches);
  return losses;
}

at::Tensor Pipeline::infer(const WholeForward& forward) {
  detail::SuspendedForward& suspended =
      detail::begun(state_->suspended.get(), forward, {.micro_batches = 1}, /*any_shape=*/true);
  const StageTensors result = infer(no_input);
  suspended.end(1);
  return result.at(0);
}

Engine& Pipeline::engine() { return *state_->engine; }
const Engine& Pipeline::engine() const { return *state_->engine; }
int Pipeline::stage_count() const { return state_->places.shape().stages(); }

std::vector<int> Pipeline::own_stages() const { return state_->own_stages(); }

}  // namespace zero
