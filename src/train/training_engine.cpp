#include "train/training_engine.h"

#include <ATen/ops/zeros.h>

#include <chrono>
#include <optional>
#include <utility>

#include "plan/stage_balance.h"
#include "train/model_stages.h"
#include "zero/from_config.h"
#include "zero/model_spec.h"

namespace zero::training {
namespace {

/// Adds the seconds from its making to its end.
class Timed {
 public:
  explicit Timed(double& seconds) : seconds_(seconds) {}
  ~Timed() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

TrainingEngine::TrainingEngine(const Config& config, std::shared_ptr<LanguageModel> model,
                               EngineOptions options, const Mesh& mesh,
                               std::function<uint64_t(int64_t micro)> seed_of)
    : model_(std::move(model)),
      micro_batches_(config.gradient_accumulation_steps),
      drops_(config.model.dropout > 0),
      seed_of_(std::move(seed_of)) {
  const ParallelConfig& parallel = config.parallel;
  if (parallel.pipeline == 1) {
    engine_ = std::make_unique<Engine>(*model_, optimizer_of(config), std::move(options), mesh);
    return;
  }
  // Of the whole model: parts of tensor-parallel ranks differ in size, their stages must not.
  const std::vector<int64_t> blocks =
      stage_blocks_of(config, trained_spec(config), stages_of_pipeline(parallel));
  const PipelineOptions pipeline{.micro_batches = static_cast<int>(micro_batches_),
                                 .schedule = parallel.schedule,
                                 .chunks = parallel.chunks};
  pipeline_ = std::make_unique<Pipeline>(
      *model_, stages_of_model(model_, blocks, [this](int micro) { seed_dropout(micro); }),
      optimizer_of(config), std::move(options), pipeline, mesh);
}

void TrainingEngine::seed_dropout(int64_t micro) {
  if (drops_ && model_->is_training()) model_->set_dropout_seed(seed_of_(micro));
}

at::Tensor TrainingEngine::run(const std::function<Batch(int64_t micro)>& batch) {
  times_ = {};
  if (pipeline_) {
    const Timed timed(times_.forward_s);
    const at::Tensor losses =
        pipeline_->train([&](int micro) { return StageTensors{batch(micro).tokens}; },
                         [&](const StageTensors& out, int micro) {
                           return model_->last_part_loss(out.at(0), batch(micro).targets);
                         });
    // In the order of one rank's sum.
    at::Tensor sum = at::zeros({}, losses.options());
    for (int64_t micro = 0; micro < micro_batches_; ++micro) sum += losses[micro];
    return sum;
  }
  at::Tensor sum = at::zeros({}, at::TensorOptions(at::kDouble).device(engine_->mesh().device()));
  for (int64_t micro = 0; micro < micro_batches_; ++micro) {
    const Batch now = batch(micro);
    seed_dropout(micro);
    at::Tensor loss;
    {
      const Timed timed(times_.forward_s);
      loss = engine_->forward([&] { return model_->loss(now.tokens, now.targets); });
    }
    {
      const Timed timed(times_.backward_s);
      engine_->backward(loss);
    }
    sum += loss.detach().to(at::kDouble);
  }
  return sum;
}

at::Tensor TrainingEngine::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  if (!pipeline_) return engine_->forward([&] { return model_->loss(tokens, targets); });
  return pipeline_->evaluate(
      1, [&](int) { return StageTensors{tokens}; },
      [&](const StageTensors& out, int) { return model_->last_part_loss(out.at(0), targets); })[0];
}

}  // namespace zero::training
