#include "train/batches.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "zero/error.h"

namespace zero::training {

Batch read_batch(const TokenFile& file, std::span<const int64_t> first_tokens, int64_t sequence_length,
                 at::Device device) {
  const auto samples = static_cast<int64_t>(first_tokens.size());
  const int64_t length = sequence_length + 1;
  at::Tensor both = at::empty({samples, length}, at::kLong);
  std::vector<int32_t> ids(length);
  auto* out = both.mutable_data_ptr<int64_t>();
  for (const int64_t first : first_tokens) {
    file.read(first, ids);
    out = std::copy(ids.begin(), ids.end(), out);
  }
  // From pinned memory, so that the host need not wait for the device.
  const auto there = [&](const at::Tensor& part) {
    return device.is_cpu() ? part : part.pin_memory().to(device, /*non_blocking=*/true);
  };
  return {.tokens = there(both.narrow(1, 0, sequence_length).contiguous()),
          .targets = there(both.narrow(1, 1, sequence_length).contiguous())};
}

TokenFile open_tokens(const std::string& path, const std::string& place, const TokenNeeds& needs) {
  require(!path.empty(), ErrorKind::Config, place, "expected a token file, got none",
          "make one with `zero tokenize` and name it");
  TokenFile file = TokenFile::open(path);
  if (needs.vocabulary) file.require_vocabulary(*needs.vocabulary);
  require(file.vocabulary().size <= needs.vocab_size, ErrorKind::Config, path,
          "its vocabulary has " + std::to_string(file.vocabulary().size) + " tokens, the model only " +
              std::to_string(needs.vocab_size),
          "set model.vocab_size to that or more, or tokenize the text with the model's tokenizer");
  require(file.size() > needs.sequence_length, ErrorKind::Config, path,
          "it holds " + std::to_string(file.size()) + " tokens, and one sample needs " +
              std::to_string(needs.sequence_length + 1),
          "give more text or a smaller data.sequence_length");
  return file;
}

TokenNeeds token_needs_of(const Config& config) {
  TokenNeeds needs{.vocab_size = config.model.vocab_size, .sequence_length = config.data.sequence_length};
  if (config.data.tokenizer.empty()) return needs;
  const Tokenizer tokenizer = Tokenizer::load(config.data.tokenizer);
  require(
      tokenizer.vocab_size() <= config.model.vocab_size, ErrorKind::Config, config.place("model.vocab_size"),
      "model.vocab_size: expected at least " + std::to_string(tokenizer.vocab_size()) + ", the tokens of " +
          config.data.tokenizer + ", got " + std::to_string(config.model.vocab_size));
  needs.vocabulary = tokenizer.vocabulary();
  return needs;
}

Sampler sampler_of(const Config& config, const TokenFile& file) {
  return {file.size(),
          {.sequence_length = config.data.sequence_length,
           .shuffle = config.data.shuffle,
           .seed = static_cast<uint64_t>(config.data.seed)}};
}

}  // namespace zero::training
