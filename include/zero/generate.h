#pragma once
// Text from a model: pick the next token from its logits, append, repeat. Knows only a function from tokens
// to logits, or a LanguageModel.

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "zero/language_model.h"

namespace zero {

struct GenerateOptions {
  int64_t max_new_tokens = 100;
  double temperature = 1;  // logits are divided by it; 0 always takes the most likely token
  int64_t top_k = 0;       // only the k most likely tokens; 0: all of them
  double top_p = 1;        // only the fewest tokens whose probabilities reach p; 1: all of them
  uint64_t seed = 0;       // same seed, same logits: same tokens
  std::vector<int64_t> stop_tokens = {};  // any of them ends the text and is not part of it

  /// Throws Config naming the option: counts and temperature not negative, 0 < top_p <= 1.
  void check() const;
};

struct TokenProbability {
  int64_t token = 0;
  double probability = 0;
};

/// What a next token is drawn from: temperature, then top_k, then top_p over what top_k left, as Hugging Face
/// orders them. Most likely first, equals by lower token; never empty; the probabilities sum to 1. At
/// temperature 0 the one most likely token. Throws Usage for no logits, NaN, +infinity, or -infinity
/// everywhere.
std::vector<TokenProbability> next_token_distribution(std::span<const float> logits,
                                                      const GenerateOptions& options);

/// tokens [1, n] int64 on the CPU, 1 <= n <= context_length -> logits [1, m, vocabulary] on any device; the
/// last of the m >= 1 positions is used.
using LogitsFunction = std::function<torch::Tensor(const torch::Tensor& tokens)>;

/// The tokens that follow `prompt`, at most max_new_tokens. Once prompt and text are longer than the context,
/// the model sees the last context_length tokens. Runs without gradients; draws from a generator of its own,
/// never the default one, so that ranks that call it with the same logits stay equal. Throws Config for bad
/// options, an empty prompt or a context below 1, Usage for logits of another shape.
std::vector<int64_t> generate_tokens(const LogitsFunction& logits_of, std::span<const int64_t> prompt,
                                     int64_t context_length, const GenerateOptions& options = {});

/// How ranks make one text together; unset: the rank makes it alone.
struct GenerateTogether {
  /// Runs the model's forward, such as inside Engine::forward, and returns its logits.
  std::function<torch::Tensor(const std::function<torch::Tensor()>& forward)> run = {};
  /// Instead of `run` and the model's forward: logits [1, m >= 1, vocabulary], of which the last position is
  /// used, of tokens [1, n] on the CPU that follow those in `cache`, which then holds them too; null: of all
  /// positions anew. For models whose layers are on several ranks.
  std::function<torch::Tensor(const torch::Tensor& tokens, KeyValueCache* cache)> logits = {};
  /// The token that all ranks take, given the one that was drawn here.
  std::function<int64_t(int64_t token)> agree = {};
};

/// The same from a model, which looks at each token once and keeps its keys and values; where the text is
/// longer than the context, the last context_length tokens are looked at anew for each token. The parameters
/// are read in every step: under stage 3 hold them with a GatherScope.
std::vector<int64_t> generate_tokens(LanguageModel& model, std::span<const int64_t> prompt,
                                     const GenerateOptions& options = {},
                                     const GenerateTogether& together = {});

}  // namespace zero
