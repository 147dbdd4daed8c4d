#include "zero/inference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mesh/agree.h"
#include "plan/stage_balance.h"
#include "saving/frozen.h"
#include "train/mapped_model.h"
#include "train/model_stages.h"
#include "train/older_checkpoint.h"
#include "train/saved_values.h"
#include "train/training_model.h"
#include "zero/cpu_operators.h"
#include "zero/error.h"
#include "zero/model_spec.h"
#include "zero/pipeline.h"
#include "zero/placement.h"
#include "zero/tensor_parallel.h"
#include "zero/torch_dtype.h"

namespace zero {
namespace {

EngineOptions engine_options(const Config& config, const InferenceOptions& inference,
                             std::shared_ptr<const InitialValues> values, const TensorParallel& parallel) {
  EngineOptions options;
  parallel.add_to(options);
  options.stage = stage_that_shards_parameters();
  options.dtype = config.precision.param_dtype.value_or(Dtype::f32);
  options.fp32_parameters = config.precision.fp32_parameters;
  if (config.precision.autocast) options.autocast = config.precision.autocast_dtype;
  options.budget_bytes = inference.budget_bytes;
  options.group_numel = config.residency.group_numel;
  options.cpu_operators = config.cpu_operators;
  options.share_parameters = config.residency.share;
  options.initial_values = std::move(values);
  if (inference.disk.empty()) return options;
  options.tiers.parameter = Tier::Disk;
  options.offload.path = inference.disk;
  return options;
}

// Ranks with the same pages share out what is to be compared with checksums.
training::CheckShare check_share(const Mesh& mesh) {
  const std::vector<int> memories = mesh.world().memories();
  const auto mine = memories.begin() + mesh.rank();
  return {.number = std::count(memories.begin(), mine, *mine),
          .count = std::count(memories.begin(), memories.end(), *mine)};
}

// Null where some rank cannot. With several, a copy would be one of each rank; and with a disk none shall be.
std::shared_ptr<LanguageModel> mapped_on_all(const SavedModel& saved, const Mesh& mesh,
                                             const InferenceOptions& options) {
  const PrecisionConfig& types = saved.config.precision;
  const bool may = options.map_weights && types.fp32_parameters.empty() && !types.autocast &&
                   mesh.device().is_cpu() && saved.config.residency.share &&
                   mesh.group("dp").size() == mesh.size();
  if (!may) return nullptr;
  std::shared_ptr<LanguageModel> model;
  detail::together(mesh, "model", [&] {
    model =
        training::mapped_model(saved, scalar_type_of(saved.config.precision.param_dtype.value_or(Dtype::f32)),
                               mesh.size() == 1 && options.disk.empty(), check_share(mesh));
  });
  detail::require_same(mesh, model ? "mapped" : "read", "how weights are held");
  return model;
}

int ranks_along_pipeline(const Mesh& mesh) {
  const auto axes = mesh.axes();
  const bool has_axis =
      std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.name == "pp"; });
  return has_axis ? mesh.group("pp").size() : 1;
}

// One a rank, whatever the schedule of training was: nothing comes back. Blocks by hand where they fit.
std::vector<int64_t> stage_blocks(const Config& config, int ranks) {
  Config staged = config;
  if (std::ssize(staged.parallel.stage_blocks) != ranks) staged.parallel.stage_blocks.clear();
  return stage_blocks_of(staged, trained_spec(config), ranks);
}

// One unit at a time is whole. Ranks of a pipeline hold other names.
void check_left_out(const SavedModel& saved, const training::SavedValues& values, LanguageModel& model,
                    Engine& engine, const TensorParallel& parallel, const Mesh& mesh) {
  const auto parameters = model.named_parameters();
  const std::vector<std::string> held = engine.parameter_names();
  for (const auto& [name, expected] : values.left_out) {
    if (std::find(held.begin(), held.end(), name) == held.end()) {
      detail::together(mesh, "frozen parameters", [] {});
      continue;
    }
    const std::array names{name};
    const GatherScope scope(engine, names);
    const at::Tensor whole = parallel.whole_of(name, parameters[name]);
    detail::together(mesh, "frozen parameters",
                     [&] { values.require_same(saved, name, detail::frozen_fingerprint(whole)); });
  }
}

}  // namespace

// Everything gathered, where that is wanted, and no gradients.
class Inference::Scope {
 public:
  explicit Scope(Inference& inference) {
    if (inference.is_mapped() && inference.uses_our_operators_) operators_.emplace();
    if (!inference.is_mapped() && inference.gathers_once_) gathered_.emplace(*inference.engine_);
  }

 private:
  at::NoGradGuard no_grad_;
  std::optional<GatherScope> gathered_;
  std::optional<CpuOperators> operators_;
};

Inference::Inference(const SavedModel& saved, const Mesh& mesh, const InferenceOptions& options)
    : mesh_(mesh),
      gathers_once_(options.budget_bytes == kAllBytes),
      uses_our_operators_(saved.config.cpu_operators) {
  training::naming_older(saved.checkpoint, [&] {
    model_ = mapped_on_all(saved, mesh, options);
    if (model_) return;
    training::SavedValues values;
    detail::together(mesh, "model", [&] {
      values = training::values_of(saved);
      model_ = training::lazy_inference_model(saved.config);
    });
    const TensorParallel parallel = training::parallelized(*model_, saved.config, mesh);
    make_engine(saved.config, engine_options(saved.config, options, values.values, parallel));
    check_left_out(saved, values, *model_, *engine_, parallel, mesh);
  });
}

Inference::~Inference() = default;

void Inference::make_engine(const Config& config, EngineOptions options) {
  const int ranks = ranks_along_pipeline(mesh_);
  if (ranks == 1) {
    whole_ = std::make_unique<Engine>(*model_, SGD{}, std::move(options), mesh_);
    engine_ = whole_.get();
    return;
  }
  pipeline_ = std::make_unique<Pipeline>(
      *model_,
      training::stages_of_model(
          model_, stage_blocks(config, ranks), [](int) {}, [this] { return cache_; }),
      SGD{}, std::move(options), PipelineOptions{.schedule = "gpipe"}, mesh_);
  engine_ = &pipeline_->engine();
}

const Engine& Inference::engine() const {
  require(engine_ != nullptr, ErrorKind::Usage, "Inference::engine", "mapped weights need none",
          "InferenceOptions::map_weights off");
  return *engine_;
}

at::Tensor Inference::run(const std::function<at::Tensor()>& forward) {
  return engine_ ? engine_->forward(forward) : forward();
}

at::Tensor Inference::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  if (!pipeline_) return run([&] { return model_->loss(tokens, targets); });
  return pipeline_->evaluate(
      1, [&](int) { return StageTensors{tokens}; },
      [&](const StageTensors& out, int) { return model_->last_part_loss(out.at(0), targets); })[0];
}

at::Tensor Inference::logits_of_pipeline(const at::Tensor& tokens, KeyValueCache* cache) {
  cache_ = cache;
  const StageTensors logits = pipeline_->infer([&](int) { return StageTensors{tokens.to(mesh_.device())}; },
                                               [&](const StageTensors& out) {
                                                 const at::Tensor all =
                                                     gathered(model_->last_part(out.at(0)));
                                                 return StageTensors{all.narrow(1, all.size(1) - 1, 1)};
                                               });
  cache_ = nullptr;
  if (cache != nullptr) cache->advance(tokens.size(1));
  return logits.at(0);
}

EvalResult Inference::evaluate(const TokenFile& file, const EvaluateOptions& options) {
  const Scope scope(*this);
  return zero::evaluate(
      [&](const at::Tensor& tokens, const at::Tensor& targets) { return loss(tokens, targets); }, file,
      options, mesh_);
}

std::vector<int64_t> Inference::generate(std::span<const int64_t> prompt, const GenerateOptions& options) {
  const Scope scope(*this);
  GenerateTogether together{.run = [&](const auto& forward) { return run(forward); }};
  if (pipeline_)
    together.logits = [&](const at::Tensor& tokens, KeyValueCache* cache) {
      return logits_of_pipeline(tokens, cache);
    };
  const at::TensorOptions integers = at::TensorOptions(at::kLong).device(mesh_.device());
  if (mesh_.size() > 1)
    together.agree = [&](int64_t drawn) {
      at::Tensor token = at::full({1}, drawn, integers);
      mesh_.world().broadcast(token, 0, "token").wait();
      return token.item<int64_t>();
    };
  return generate_tokens(*model_, prompt, options, together);
}

}  // namespace zero
