#include "bench_steps.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>

#include "plan/stage_balance.h"
#include "plan/state_bytes.h"
#include "zero/cpu_allocator.h"
#include "zero/cpu_operators.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/lazy.h"
#include "zero/mesh.h"
#include "zero/model_spec.h"
#include "zero/pipeline.h"
#include "zero/placement.h"
#include "zero/tensor_parallel.h"
#include "zero/tier_plan.h"

namespace zero::tool {
namespace {

/// Gradients are thrown away: what a step costs without any of our work. Of a plain model by LibTorch's
/// operators, of ours by ours.
class Alone : public BenchStep {
 public:
  Alone(BenchModel model, at::Device device, at::ScalarType dtype, bool ours)
      : BenchStep(std::move(model)), ours_(ours) {
    materialize(*model_.module);
    model_.module->to(device, dtype);
  }

  double run(const std::vector<Micro>& micros) override {
    std::optional<CpuOperators> fast;
    if (ours_) fast.emplace();
    double loss = 0;
    for (const Micro& micro : micros) {
      at::Tensor value = forward([&] { return model_.loss(micro.tokens, micro.targets); });
      torch::autograd::backward({value}, {});
      for (at::Tensor& parameter : model_.module->parameters()) parameter.mutable_grad().reset();
      loss += value.item<double>();
    }
    return loss / static_cast<double>(micros.size());
  }

 private:
  bool ours_;
};

OptimizerSpec adamw() { return AdamW{.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1}; }

class Trained : public BenchStep {
 public:
  Trained(BenchModel model, const EngineOptions& options, const Mesh& mesh)
      : BenchStep(std::move(model)), engine_(*model_.module, adamw(), options, mesh) {}

  double run(const std::vector<Micro>& micros) override {
    double loss = 0;
    for (const Micro& micro : micros) {
      at::Tensor value =
          forward([&] { return engine_.forward([&] { return model_.loss(micro.tokens, micro.targets); }); });
      engine_.backward(value);
      loss += value.item<double>();
    }
    engine_.step();
    choose_recomputation(engine_.mesh());
    return loss / static_cast<double>(micros.size());
  }

  const Engine* engine() const override { return &engine_; }

 private:
  Engine engine_;
};

/// Through the stages of a pipeline.
class Piped : public BenchStep {
 public:
  Piped(BenchModel model, const BenchArguments& arguments, const EngineOptions& options, const Mesh& mesh)
      : BenchStep(std::move(model)),
        pipeline_(*model_.module, model_.stages(bench_stage_blocks(model_.shape, arguments)), adamw(),
                  options,
                  {.micro_batches = arguments.accumulation,
                   .schedule = arguments.schedule,
                   .chunks = arguments.chunks},
                  mesh) {}

  double run(const std::vector<Micro>& micros) override {
    const at::Tensor losses =
        pipeline_.train([&](int index) { return StageTensors{micros.at(index).tokens}; },
                        [&](const StageTensors& out, int index) {
                          return model_.last_loss(out.at(0), micros.at(index).targets);
                        });
    pipeline_.step();
    choose_recomputation(pipeline_.engine().mesh());
    return losses.mean().item<double>();
  }

  const Engine* engine() const override { return &pipeline_.engine(); }

 private:
  Pipeline pipeline_;
};

EngineOptions options_of(const BenchArguments& arguments, int stage, bool ours, at::ScalarType dtype) {
  EngineOptions options{.stage = stage, .dtype = dtype, .accumulation_steps = arguments.accumulation};
  options.gradient_clipping = arguments.clipping;
  options.broadcast_initial_values = false;  // all ranks draw from one seed
  options.share_parameters = !arguments.private_parameters;
  options.cpu_operators = ours;
  if (arguments.bucket_numel > 0) options.reduce_bucket_numel = arguments.bucket_numel;
  return options;
}

}  // namespace

void set_offload(EngineOptions& options, const BenchArguments& arguments) {
  options.offload.path = arguments.disk_path;
  if (arguments.disk_buffers > 0) options.offload.buffer_count = arguments.disk_buffers;
  if (arguments.ahead != "auto")
    options.offload.step_in_backward = arguments.ahead == "on"         ? StepInBackward::On
                                       : arguments.ahead == "in_place" ? StepInBackward::InPlace
                                                                       : StepInBackward::Off;
  if (arguments.offload == "none") return;
  const Tier tier = arguments.offload == "host" ? Tier::Host : Tier::Disk;
  const std::vector<std::string>& parts = arguments.offload_parts;
  const auto asks_for = [&](std::string_view part, bool otherwise) {
    return parts.empty() ? otherwise : std::find(parts.begin(), parts.end(), part) != parts.end();
  };
  // Beside a device the host has masters and optimizer states, and more where that is asked for.
  const bool everything = tier == Tier::Disk;
  if (asks_for(kParameterPart, everything && options.stage == 3)) options.tiers.parameter = tier;
  if (asks_for(kGradientPart, everything)) options.tiers.gradient = tier;
  if (asks_for(kStatePart, true)) options.tiers.master = options.tiers.optimizer = tier;
}

ActivationBytes activations_of(const BenchModel& model, const BenchArguments& arguments) {
  return activation_bytes(model.shape, arguments.batch, arguments.sequence,
                          arguments.dtype == "bf16" ? Dtype::bf16 : Dtype::f32, recompute_of(arguments),
                          {.ranks = arguments.tensor, .sequence = arguments.cuts_sequence});
}

namespace {

// Within --memory: the states that must go are on the disk of --path.
std::string place(EngineOptions& options, const BenchModel& model, const BenchArguments& arguments,
                  const Mesh& mesh) {
  options.tiers = {};
  options.offload.path = arguments.disk_path;
  TierRequest request{.movable = {.parameter = arguments.stage == stage_that_shards_parameters(),
                                  .gradient = true,
                                  .master = true,
                                  .optimizer = true},
                      .memory_bytes = arguments.budget_bytes};
  request.activations = activations_of(model, arguments);
  const RankPlaces places = RankPlaces::of(mesh.group("dp").memories(), mesh.device().is_cpu());
  const TierPlan chosen = choose_tiers(module_spec(*model.module), options, places,
                                       bytes_of_rule(std::get<AdamW>(adamw())), request);
  use_tiers(options, chosen);
  return chosen.explained;
}

}  // namespace

std::vector<int64_t> bench_stage_blocks(const Gpt2Shape& shape, const BenchArguments& arguments) {
  ParallelConfig parallel;
  parallel.pipeline = arguments.pipeline;
  parallel.schedule = arguments.schedule;
  parallel.chunks = arguments.chunks;
  const auto width = static_cast<double>(shape.width);
  const double block = (24 * width + 4 * static_cast<double>(arguments.sequence)) * width;
  return balance_stages({.first = 0,
                         .last = 2 * static_cast<double>(shape.vocab_size) * width,
                         .blocks = std::vector<double>(static_cast<size_t>(shape.layers), block)},
                        stages_of_pipeline(parallel));
}

at::Tensor BenchStep::forward(const std::function<at::Tensor()>& loss) {
  const int64_t before = cpu_allocator_stats().used_bytes;
  at::Tensor value = loss();
  kept_bytes_ = std::max(kept_bytes_, cpu_allocator_stats().used_bytes - before);
  return value;
}

void BenchStep::choose_recomputation(const Mesh& mesh) {
  if (model_.chain == nullptr || !model_.chain->must_choose()) return;
  chosen_ = model_.chain->choose(mesh);
  kept_bytes_ = 0;
}

RecomputePolicy recompute_of(const BenchArguments& arguments) {
  const bool is_auto = arguments.recompute == "auto";
  require(
      is_auto == (arguments.memory_bytes >= 0), ErrorKind::Config, "--recompute-memory",
      is_auto ? "--recompute auto needs the bytes that blocks may keep" : "only --recompute auto has one");
  const int64_t every = arguments.recompute == "all" ? kRecomputeAll : kRecomputeNone;
  return {.every = is_auto ? kRecomputeAuto : every, .memory_bytes = arguments.memory_bytes};
}

std::unique_ptr<BenchStep> make_bench_step(const std::string& what, const BenchArguments& arguments,
                                           const Mesh& mesh, const RecomputePolicy& recompute) {
  const auto dtype = arguments.dtype == "bf16" ? at::kBFloat16 : at::kFloat;
  BenchModel model =
      make_bench_model(arguments.model, arguments.plain, std::max(1024, arguments.sequence), recompute);
  const bool ours = arguments.operators == kOurs && what != kOnLibTorch;
  if (what == kAlone)
    return std::make_unique<Alone>(std::move(model), mesh.device(), dtype, ours && !arguments.plain);
  const bool is_own_stage = what == kOnLibTorch || what == kInMemory || what == kKeepingAll;
  EngineOptions options =
      options_of(arguments, is_own_stage ? arguments.stage : std::stoi(what), ours, dtype);
  if (what != kInMemory) set_offload(options, arguments);
  std::string placement;
  if (what != kInMemory && arguments.budget_bytes > 0) placement = place(options, model, arguments, mesh);
  if (arguments.tensor > 1)
    parallelize(*model.module, model.tensor_plan(arguments.tensor), mesh,
                {.sequence = arguments.cuts_sequence})
        .add_to(options);
  std::unique_ptr<BenchStep> step;
  if (arguments.pipeline > 1)
    step = std::make_unique<Piped>(std::move(model), arguments, options, mesh);
  else
    step = std::make_unique<Trained>(std::move(model), options, mesh);
  step->say_placement(std::move(placement));
  return step;
}

}  // namespace zero::tool
