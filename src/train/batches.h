#pragma once
// From a token file to tensors that a model takes.

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "zero/config.h"
#include "zero/sampler.h"
#include "zero/token_file.h"
#include "zero/tokenizer.h"

namespace zero::training {

struct Batch {
  at::Tensor tokens;   // [samples, sequence] int64
  at::Tensor targets;  // the same, one token further
};

/// The samples as a batch on `device`. `first_tokens`: where each begins in the file. Throws Corrupt for an
/// id outside the file's vocabulary.
Batch read_batch(const TokenFile& file, std::span<const int64_t> first_tokens, int64_t sequence_length,
                 at::Device device);

/// What token files must agree with.
struct TokenNeeds {
  int64_t vocab_size = 0;                     // of the model: rows of its embedding
  int64_t sequence_length = 0;                // the file must hold one sample at least
  std::optional<Vocabulary> vocabulary = {};  // of the tokenizer, where there is one
};

/// Opens a token file and checks it against the model and the tokenizer. `place`: of the key or option that
/// named it. Throws Config (no path, another vocabulary, too short), Io, Corrupt, naming the file.
TokenFile open_tokens(const std::string& path, const std::string& place, const TokenNeeds& needs);

/// The needs of a configuration; reads its tokenizer where it names one. Throws as Tokenizer::load, and
/// Config where the tokenizer has more tokens than the model.
TokenNeeds token_needs_of(const Config& config);

/// The order of training samples over a file.
Sampler sampler_of(const Config& config, const TokenFile& file);

}  // namespace zero::training
