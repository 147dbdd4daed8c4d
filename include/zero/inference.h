#pragma once
// A trained model on the ranks of a mesh, to evaluate it or to make text with: stage 3, no gradients, no
// optimizer. Its values go from the files straight into shards; no rank holds a copy of the model meanwhile.
//
// Ranks of one host keep one copy of the parameters between them, and gathering moves nothing. Of ranks that
// share no memory each keeps its shard, and `budget_bytes` says what it may hold beyond that: with kAllBytes
// every unit is gathered once for a whole text or a whole evaluation, with less once a token or a batch.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "zero/config_sections.h"
#include "zero/engine.h"
#include "zero/evaluate.h"
#include "zero/generate.h"
#include "zero/load_model.h"

namespace zero {

struct InferenceOptions {
  int64_t budget_bytes = kAllBytes;  // gathered parameters; -1: the three largest
};

class Inference {
 public:
  /// The parameters have the type that the run computed in. Collective; throws as load_model(), on every
  /// rank.
  Inference(const SavedModel& saved, const Mesh& mesh, const InferenceOptions& options = {});
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  /// As zero::evaluate: the samples are split over the ranks. Collective.
  EvalResult evaluate(const TokenFile& file, const EvaluateOptions& options);

  /// As zero::generate_tokens. All ranks compute the same text; they take the tokens that rank 0 draws, so
  /// that hosts which round differently stay together. Collective.
  std::vector<int64_t> generate(std::span<const int64_t> prompt, const GenerateOptions& options);

  const Engine& engine() const { return *engine_; }

 private:
  class Scope;
  Mesh mesh_;
  std::shared_ptr<LanguageModel> model_;
  std::unique_ptr<Engine> engine_;
  bool gathers_once_;
};

}  // namespace zero
