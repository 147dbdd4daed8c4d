#pragma once
// From a sharded checkpoint to files that other programs open: the model's parameters alone, whole, in
// Hugging Face's layout. Needs no ranks.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "zero/dtype.h"

namespace zero {

struct ConsolidateOptions {
  enum class Format { Safetensors, Pytorch };
  Format format = Format::Safetensors;
  std::optional<Dtype> dtype = {};          // f32, bf16 or f16; unset: as stored, fp32 where it was trained
  int64_t most_file_bytes = 5'000'000'000;  // of tensors in one file; a larger tensor is alone in its file
  // Where the tokenizer's files are copied from; "": none are. Unset: the data.tokenizer of the run's
  // configuration, else the model directory that training began with, if it has one.
  std::optional<std::filesystem::path> tokenizer = {};
  // Low-rank adapters become part of the weights they belong to, W + alpha / rank * B A in fp32, rounded to
  // the type last. Off: a checkpoint that holds adapters is refused.
  bool merge_adapters = false;
  // The model directory that training began with (unset: the model.from of the run's configuration), for the
  // frozen parameters that the checkpoint leaves out (checkpoint.trainable_only) and for what is carried
  // through: the special tokens' ids in config.json, generation_config.json, the tokenizer. "" does without,
  // where nothing is left out.
  std::optional<std::filesystem::path> from = {};
};

struct Consolidated {
  std::vector<std::string> files = {};  // in the output directory
  int64_t tensors = 0, bytes = 0;       // of the model
  int64_t step = 0;                     // of the checkpoint
  bool is_model = false;  // false: weights alone, under their own names, for want of a configuration
};

/// Makes the directory `out`, which must be absent or empty, from one checkpoint. It appears whole or not at
/// all. A checkpoint of `zero train` becomes a model directory of transformers': config.json, the tokenizer's
/// files, the weights under Hugging Face's names. One that was saved without a configuration becomes its
/// weights and buffers under their own names. Memory: the checkpoint's index and some buffers of a few MiB,
/// whatever the model's size, and, merging, two adapter matrices as fp32. Throws Config (out is in use, no
/// tokenizer at that place or another one than the model was trained with, no model directory where training
/// began with one, frozen parameters that are not
/// those it was trained with, values that the type cannot hold), Unsupported (frozen parameters that were
/// drawn and left out), Io and Corrupt as CheckpointReader.
Consolidated consolidate(const std::filesystem::path& checkpoint, const std::filesystem::path& out,
                         const ConsolidateOptions& options = {});

}  // namespace zero
