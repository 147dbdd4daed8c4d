#pragma once
// A trained model back from a checkpoint, or from a model directory of Hugging Face's: its values alone,
// without ranks, engine or optimizer state.

#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "zero/config.h"
#include "zero/language_model.h"
#include "zero/tokenizer.h"

namespace zero {

/// Where a model's values are, and the configuration of the run that made them.
struct SavedModel {
  std::filesystem::path checkpoint;  // or the model directory
  Config config;                     // effective: everything filled in
  std::optional<Vocabulary>
      vocabulary;  // of the text it was trained on; none: a model directory without a tokenizer
  std::vector<int64_t> end_tokens;  // that a model directory names; any of them ends a text
  int64_t step = 0;                 // of the training run
  bool hugging_face = false;        // a model directory
};

/// The checkpoint that `path` names: itself, or the newest of a run directory or of a folder of checkpoints.
/// Reads nothing of it. Throws Config where there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// `model` is a run directory (its newest checkpoint counts), a checkpoint directory, or a model directory of
/// Hugging Face's, whose tokenizer is its own, whose type is bf16 where its weights are and fp32 otherwise,
/// and whose samples have 1024 tokens, or the context if that is shorter. Throws Config where it is none of
/// these, or holds no checkpoint, or one that `zero train` did not write; Unsupported for an architecture
/// that this version does not do; Io and Corrupt as CheckpointReader.
SavedModel find_model(const std::filesystem::path& model);

/// Builds the model, adapters included, and reads its parameters one at a time, straight into their memory;
/// `dtype` as the parameters shall have it. A checkpoint may come from any number of ranks. What is stored
/// under "optimizer/", "rank/" and "buffer/" is not read. Throws Config for the values of another model,
/// naming the parameter: one that is missing, has another shape, or is not the model's. Throws Io and Corrupt
/// as CheckpointReader::read, which checks every checksum.
std::shared_ptr<LanguageModel> load_model(const SavedModel& saved, at::ScalarType dtype = at::kFloat);

}  // namespace zero
