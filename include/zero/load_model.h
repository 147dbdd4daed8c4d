#pragma once
// A trained model back from a checkpoint: its values alone, without ranks, engine or optimizer state.

#include <torch/types.h>

#include <cstdint>
#include <filesystem>

#include "zero/config.h"
#include "zero/gpt2.h"
#include "zero/gpt2_shape.h"
#include "zero/tokenizer.h"

namespace zero {

/// A checkpoint and the configuration of the run that made it.
struct SavedModel {
  std::filesystem::path checkpoint;
  Config config;          // effective: everything filled in
  Vocabulary vocabulary;  // of the text it was trained on
  int64_t step = 0;       // of the training run
};

/// The checkpoint that `path` names: itself, or the newest of a run directory or of a folder of checkpoints.
/// Reads nothing of it. Throws Config where there is none.
std::filesystem::path find_checkpoint(const std::filesystem::path& path);

/// `model` is a run directory (its newest checkpoint counts) or a checkpoint directory. Throws Config where
/// it is neither, or holds no checkpoint, or one that `zero train` did not write; Io and Corrupt as
/// CheckpointReader.
SavedModel find_model(const std::filesystem::path& model);

/// Builds a GPT-2 and reads its parameters one at a time, straight into their memory; `dtype` as the
/// parameters shall have it. The checkpoint may come from any number of ranks. What is stored under
/// "optimizer/", "rank/" and "buffer/" is not read. Throws Config for a checkpoint of another model, naming
/// the parameter: one that is missing, has another shape, or is not the model's. Throws Io and Corrupt as
/// CheckpointReader::read, which checks every checksum. Draws from the default generator, as building a model
/// does.
Gpt2 load_model(const std::filesystem::path& checkpoint, const Gpt2Shape& shape,
                at::ScalarType dtype = at::kFloat);

}  // namespace zero
