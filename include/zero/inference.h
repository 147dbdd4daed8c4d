#pragma once
// A trained model on the ranks of a mesh, to evaluate it or to make text with: stage 3, no gradients, no
// optimizer. On a mesh with an axis "pp" each rank along it holds a stage, whose weights never leave it;
// activations and logits do. Values go from the files straight into shards; no rank holds a copy of the model
// meanwhile.
//
// On CPU, weights are mapped where their files hold them in one piece and in the type that is computed in:
// pages of the system's cache, once for all ranks and processes of a host, which it drops when memory is
// short. No engine is needed then. One rank alone copies the others; several ranks map all or none. The files
// must not be cut while they are in use. A checkpoint's checksums are compared once, before anything is
// computed, with the same pages, whose comparison the ranks of a host share out; what the system reads again
// from a disk later is as good as the disk. A model directory has none.
//
// Otherwise ranks of one host keep one copy of the parameters between them, and gathering moves nothing. Of
// ranks that share no memory each keeps its shard, and `budget_bytes` says what it may hold beyond that: with
// kAllBytes every unit is gathered once for a whole text or a whole evaluation, with less once a token or a
// batch.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zero/config_sections.h"
#include "zero/engine.h"
#include "zero/evaluate.h"
#include "zero/generate.h"
#include "zero/load_model.h"

namespace zero {

class Pipeline;

struct InferenceOptions {
  int64_t budget_bytes = kAllBytes;  // gathered parameters; -1: the three largest. Of mapped ones none are
  bool map_weights = true;           // where it can be
  // Of weights that cannot all be mapped: an existing directory on a disk, where each rank's shard lies in a
  // file for its user alone and without a name (docs/tiers.md). Of them `budget_bytes` are in memory. "":
  // memory.
  std::string disk = {};
};

class Inference {
 public:
  /// The parameters have the type that the run computed in. Collective; throws as load_model(), on every
  /// rank.
  Inference(const SavedModel& saved, const Mesh& mesh, const InferenceOptions& options = {});
  ~Inference();
  Inference(const Inference&) = delete;
  Inference& operator=(const Inference&) = delete;

  /// As zero::evaluate: the samples are split over the ranks along "dp". Collective.
  EvalResult evaluate(const TokenFile& file, const EvaluateOptions& options);

  /// As zero::generate_tokens. All ranks compute the same text; they take the tokens that rank 0 draws, so
  /// that hosts which round differently stay together. Collective.
  std::vector<int64_t> generate(std::span<const int64_t> prompt, const GenerateOptions& options);

  /// Weights are where their files are: there is no engine.
  bool is_mapped() const { return engine_ == nullptr; }
  /// Of this rank's stage. Throws Usage where weights are mapped.
  const Engine& engine() const;

 private:
  class Scope;
  void make_engine(const Config& config, EngineOptions options);
  at::Tensor run(const std::function<at::Tensor()>& forward);
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
  at::Tensor logits_of_pipeline(const at::Tensor& tokens, KeyValueCache* cache);
  Mesh mesh_;
  std::shared_ptr<LanguageModel> model_;
  std::unique_ptr<Engine> whole_;       // without a pipeline
  std::unique_ptr<Pipeline> pipeline_;  // or with one
  Engine* engine_ = nullptr;            // of either
  KeyValueCache* cache_ = nullptr;      // of the forward that is under way
  bool gathers_once_, uses_our_operators_;
};

}  // namespace zero
