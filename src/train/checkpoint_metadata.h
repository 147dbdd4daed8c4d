#pragma once
// What a run stores beside the values: where it stands, and its configuration, so that a checkpoint can be
// used without the rest of the run directory.

#include <cstdint>
#include <filesystem>
#include <string>

#include "zero/config.h"
#include "zero/tokenizer.h"

namespace zero::training {

struct CheckpointMetadata {
  int64_t step = 0;             // steps of the run so far, skipped ones too
  int64_t position = 0;         // samples taken so far (see Sampler)
  int64_t tokens = 0;           // trained on so far
  bool evaluation_due = false;  // the evaluation after this step has not been made yet
  Vocabulary vocabulary = {};   // of the training text
  Config config = {};           // resolved
};

/// A configuration as a run keeps it: its paths absolute, so that they lead to the same files from any
/// directory.
Config stored_form(Config config);

/// A JSON object, for Engine::save.
std::string to_text(const CheckpointMetadata& metadata);

/// Where frozen parameters that a checkpoint leaves out come from, in words.
std::string origin_of_frozen(const Config& config);

/// Reads the metadata of a checkpoint; checks its index on the way. Throws Config for a checkpoint that
/// `zero train` did not write, Io and Corrupt as CheckpointReader.
CheckpointMetadata read_metadata(const std::filesystem::path& checkpoint);

}  // namespace zero::training
