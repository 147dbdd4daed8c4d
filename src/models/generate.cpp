#include "zero/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {

void check_logits(std::span<const float> logits) {
  bool any_finite = false;
  for (size_t i = 0; i < logits.size(); i++) {
    require(!std::isnan(logits[i]) && logits[i] != INFINITY, ErrorKind::Usage, "generate",
            "the logit of token " + std::to_string(i) + " is " + std::to_string(logits[i]),
            "the model has diverged; use an earlier checkpoint");
    any_finite |= std::isfinite(logits[i]);
  }
  require(any_finite, ErrorKind::Usage, "generate", "no token has a finite logit");
}

// Divides by the sum of the first `count`, which are kept.
void keep(std::vector<TokenProbability>& tokens, size_t count) {
  tokens.resize(count);
  double sum = 0;
  for (const auto& t : tokens) sum += t.probability;
  for (auto& t : tokens) t.probability /= sum;
}

// The fewest tokens whose probabilities, which sum to 1, reach p; at least one.
size_t nucleus(const std::vector<TokenProbability>& tokens, double p) {
  double sum = 0;
  for (size_t i = 0; i < tokens.size(); i++) {
    sum += tokens[i].probability;
    if (sum >= p) return i + 1;
  }
  return tokens.size();  // rounding kept the sum just below p
}

int64_t draw(const std::vector<TokenProbability>& tokens, std::mt19937_64& generator) {
  // The top 53 bits as a number in [0, 1): unlike std::uniform_real_distribution the same with every
  // compiler.
  double rest = static_cast<double>(generator() >> 11) * 0x1p-53;
  for (const auto& t : tokens) {
    rest -= t.probability;
    if (rest < 0) return t.token;
  }
  return tokens.back().token;
}

// The logits of the last position as fp32 on the CPU, [vocabulary].
torch::Tensor last_logits(const torch::Tensor& logits) {
  require(logits.defined() && logits.dim() == 3 && logits.size(0) == 1 && logits.size(1) >= 1 &&
              logits.size(2) >= 1,
          ErrorKind::Usage, "generate", "expected logits of shape [1, positions, vocabulary] from the model");
  return logits.select(1, -1).select(0, 0).to(torch::kCPU, torch::kFloat).contiguous();
}

}  // namespace

void GenerateOptions::check() const {
  require(max_new_tokens >= 0, ErrorKind::Config, "generate max_new_tokens",
          "expected 0 or more, got " + std::to_string(max_new_tokens));
  require(std::isfinite(temperature) && temperature >= 0, ErrorKind::Config, "generate temperature",
          "expected 0 or more, got " + std::to_string(temperature), "0 always takes the most likely token");
  require(top_k >= 0, ErrorKind::Config, "generate top_k", "expected 0 or more, got " + std::to_string(top_k),
          "0 allows every token");
  require(top_p > 0 && top_p <= 1, ErrorKind::Config, "generate top_p",
          "expected 0 < top_p <= 1, got " + std::to_string(top_p), "1 allows every token");
}

std::vector<TokenProbability> next_token_distribution(std::span<const float> logits,
                                                      const GenerateOptions& options) {
  options.check();
  check_logits(logits);
  const double highest = *std::max_element(logits.begin(), logits.end());
  if (options.temperature == 0) {
    const auto best = std::max_element(logits.begin(), logits.end());  // the first of equals
    return {{.token = best - logits.begin(), .probability = 1}};
  }
  std::vector<TokenProbability> tokens;
  tokens.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); i++) {
    // Taking the highest off first keeps exp() in range at any temperature.
    const double weight = std::exp((logits[i] - highest) / options.temperature);
    if (weight > 0) tokens.push_back({.token = static_cast<int64_t>(i), .probability = weight});
  }
  // Ordered by logit, not by weight: different logits may round to the same weight.
  std::sort(tokens.begin(), tokens.end(), [&](const TokenProbability& a, const TokenProbability& b) {
    const float left = logits[a.token], right = logits[b.token];
    return left != right ? left > right : a.token < b.token;
  });
  const size_t k = options.top_k;
  keep(tokens, k > 0 ? std::min(k, tokens.size()) : tokens.size());
  if (options.top_p < 1) keep(tokens, nucleus(tokens, options.top_p));
  return tokens;
}

namespace {

using TextLogits = std::function<torch::Tensor(std::span<const int64_t> text)>;

std::vector<int64_t> go_on(const TextLogits& logits_of, std::span<const int64_t> prompt,
                           int64_t context_length, const GenerateOptions& options,
                           const GenerateTogether& together) {
  options.check();
  require(context_length >= 1, ErrorKind::Config, "generate context_length",
          "expected 1 or more, got " + std::to_string(context_length));
  require(!prompt.empty(), ErrorKind::Config, "generate prompt", "the prompt holds no token",
          "give at least one, such as the end-of-text token");
  const at::NoGradGuard no_grad;
  std::mt19937_64 generator(options.seed);
  std::vector<int64_t> text(prompt.begin(), prompt.end());
  const std::vector<int64_t>& stop = options.stop_tokens;
  for (int64_t i = 0; i < options.max_new_tokens; i++) {
    const auto logits = last_logits(logits_of(text));
    const std::span<const float> values(logits.const_data_ptr<float>(), logits.numel());
    const int64_t drawn = draw(next_token_distribution(values, options), generator);
    const int64_t next = together.agree ? together.agree(drawn) : drawn;
    if (std::find(stop.begin(), stop.end(), next) != stop.end()) break;
    text.push_back(next);
  }
  return {text.begin() + std::ssize(prompt), text.end()};
}

// The last `count` tokens as [1, count]. A copy: a model may keep its argument, and the text moves as it
// grows.
torch::Tensor last_tokens(std::span<const int64_t> text, int64_t count) {
  const int64_t* first = text.data() + (std::ssize(text) - count);
  return torch::from_blob(const_cast<int64_t*>(first), {1, count}, torch::kLong).clone();
}

}  // namespace

std::vector<int64_t> generate_tokens(const LogitsFunction& logits_of, std::span<const int64_t> prompt,
                                     int64_t context_length, const GenerateOptions& options) {
  return go_on(
      [&](std::span<const int64_t> text) {
        return logits_of(last_tokens(text, std::min<int64_t>(std::ssize(text), context_length)));
      },
      prompt, context_length, options, {});
}

std::vector<int64_t> generate_tokens(LanguageModel& model, std::span<const int64_t> prompt,
                                     const GenerateOptions& options, const GenerateTogether& together) {
  const int64_t context_length = model.context_length();
  const int64_t most = std::ssize(prompt) + std::min(options.max_new_tokens, context_length);
  KeyValueCache cache(std::min(most, context_length));
  const torch::Device device = model.parameters().front().device();
  return go_on(
      [&](std::span<const int64_t> text) {
        const int64_t length = std::ssize(text);
        // Every token of a moved window has another position, which all keys and values depend on.
        const bool moved = length > context_length;
        const torch::Tensor tokens = last_tokens(text, moved ? context_length : length - cache.length());
        if (together.logits) return together.logits(tokens, moved ? nullptr : &cache);
        const auto forward = [&] {
          return moved ? model.forward(tokens.to(device)) : model.forward(tokens.to(device), cache);
        };
        return together.run ? together.run(forward) : forward();
      },
      prompt, context_length, options, together);
}

}  // namespace zero
