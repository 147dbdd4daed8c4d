#include "zero/inference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <array>
#include <optional>
#include <string>
#include <utility>

#include "mesh/agree.h"
#include "saving/frozen.h"
#include "train/mapped_model.h"
#include "train/older_checkpoint.h"
#include "train/saved_values.h"
#include "train/training_model.h"
#include "zero/cpu_operators.h"
#include "zero/error.h"
#include "zero/lazy.h"
#include "zero/model_shape.h"
#include "zero/placement.h"
#include "zero/torch_dtype.h"

namespace zero {
namespace {

std::shared_ptr<LanguageModel> lazy_inference_model(const Config& config) {
  std::shared_ptr<LanguageModel> model = lazily([&] {
    auto built = make_language_model(shape_of(config));
    add_adapters(*built, config.lora);
    return built;
  });
  for (auto& parameter : model->named_parameters()) parameter.value().set_requires_grad(false);
  model->eval();
  return model;
}

EngineOptions engine_options(const Config& config, int64_t budget_bytes,
                             std::shared_ptr<const InitialValues> values, const TensorParallel& parallel) {
  EngineOptions options;
  parallel.add_to(options);
  options.stage = stage_that_shards_parameters();
  options.dtype = config.precision.param_dtype.value_or(Dtype::f32);
  options.fp32_parameters = config.precision.fp32_parameters;
  if (config.precision.autocast) options.autocast = config.precision.autocast_dtype;
  options.budget_bytes = budget_bytes;
  options.group_numel = config.residency.group_numel;
  options.cpu_operators = config.cpu_operators;
  options.share_parameters = config.residency.share;
  options.initial_values = std::move(values);
  return options;
}

// Null where some rank cannot. With several, a copy would be one of each rank.
std::shared_ptr<LanguageModel> mapped_on_all(const SavedModel& saved, const Mesh& mesh) {
  const PrecisionConfig& types = saved.config.precision;
  const bool may = saved.hugging_face && types.fp32_parameters.empty() && !types.autocast &&
                   mesh.device().is_cpu() && saved.config.residency.share &&
                   mesh.group("dp").size() == mesh.size();
  if (!may) return nullptr;
  std::shared_ptr<LanguageModel> model;
  detail::together(mesh, "model", [&] {
    model = training::mapped_model(
        saved, scalar_type_of(saved.config.precision.param_dtype.value_or(Dtype::f32)), mesh.size() == 1);
  });
  detail::require_same(mesh, model ? "mapped" : "read", "how weights are held");
  return model;
}

// One unit at a time is whole.
void check_left_out(const SavedModel& saved, const training::SavedValues& values, LanguageModel& model,
                    Engine& engine, const TensorParallel& parallel, const Mesh& mesh) {
  const auto parameters = model.named_parameters();
  for (const auto& [name, expected] : values.left_out) {
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
  model_ = options.map_weights ? mapped_on_all(saved, mesh) : nullptr;
  if (model_) return;
  training::naming_older(saved.checkpoint, [&] {
    training::SavedValues values;
    detail::together(mesh, "model", [&] {
      values = training::values_of(saved);
      model_ = lazy_inference_model(saved.config);
    });
    const TensorParallel parallel = training::parallelized(*model_, saved.config, mesh);
    engine_ = std::make_unique<Engine>(
        *model_, SGD{}, engine_options(saved.config, options.budget_bytes, values.values, parallel), mesh);
    check_left_out(saved, values, *model_, *engine_, parallel, mesh);
  });
}

Inference::~Inference() = default;

const Engine& Inference::engine() const {
  require(engine_ != nullptr, ErrorKind::Usage, "Inference::engine", "mapped weights need none",
          "InferenceOptions::map_weights off");
  return *engine_;
}

at::Tensor Inference::run(const std::function<at::Tensor()>& forward) {
  return engine_ ? engine_->forward(forward) : forward();
}

EvalResult Inference::evaluate(const TokenFile& file, const EvaluateOptions& options) {
  const Scope scope(*this);
  const auto loss = [&](const at::Tensor& tokens, const at::Tensor& targets) {
    return run([&] { return model_->loss(tokens, targets); });
  };
  return zero::evaluate(loss, file, options, mesh_);
}

std::vector<int64_t> Inference::generate(std::span<const int64_t> prompt, const GenerateOptions& options) {
  const Scope scope(*this);
  GenerateTogether together{.run = [&](const auto& forward) { return run(forward); }};
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
