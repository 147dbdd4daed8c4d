#pragma once
// What trains a run's model: an engine, or a pipeline of stages with an engine each. The loop does not see
// which.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "train/batches.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/language_model.h"
#include "zero/pipeline.h"

namespace zero::training {

class TrainingEngine {
 public:
  /// `seed_of(micro)`: for dropout in a micro-batch of the step that is next. Collective. Throws as Engine
  /// and Pipeline.
  TrainingEngine(const Config& config, std::shared_ptr<LanguageModel> model, EngineOptions options,
                 const Mesh& mesh, std::function<uint64_t(int64_t micro)> seed_of);
  TrainingEngine(const TrainingEngine&) = delete;
  TrainingEngine& operator=(const TrainingEngine&) = delete;

  /// Of this rank's parameters: saves, loads, steps.
  Engine& engine() { return pipeline_ ? pipeline_->engine() : *engine_; }
  /// Forwards and backwards of a step. `batch(micro)` may be asked several times. Returns the sum of the
  /// micro-batches' losses, a scalar in fp64 without a graph. Collective.
  at::Tensor run(const std::function<Batch(int64_t micro)>& batch);
  /// Seconds that the last run() spent in forwards and backwards; of a pipeline all of them in forward_s.
  struct Times {
    double forward_s = 0, backward_s = 0;
  };
  Times times() const { return times_; }
  /// The loss of one batch, without gradient. Collective over the ranks of a pipeline.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

 private:
  void seed_dropout(int64_t micro);

  std::shared_ptr<LanguageModel> model_;
  int64_t micro_batches_;
  bool drops_;
  std::function<uint64_t(int64_t)> seed_of_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Pipeline> pipeline_;
  Times times_;
};

}  // namespace zero::training
