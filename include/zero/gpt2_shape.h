#pragma once
// The shape of a GPT-2 as plain numbers: what the plan and the configuration need, without tensors.
// Radford et al., "Language Models are Unsupervised Multitask Learners" (2019); parameter names are those of
// the checkpoints in Hugging Face's format, where the head is the token embedding itself.

#include <cstdint>
#include <span>
#include <string_view>

namespace zero {

struct Gpt2Shape {
  int64_t vocab_size = 50257;
  int64_t context_length = 1024;  // longest sequence, in tokens
  int64_t layers = 12;
  int64_t width = 768;  // of the residual stream; the MLP is four times as wide
  int64_t heads = 12;   // must divide width
  double dropout = 0;   // probability, on embeddings, attention weights and both residual branches
  double layer_norm_epsilon = 1e-5;

  int64_t head_width() const { return width / heads; }

  /// Throws Config naming the field, its value and what is allowed: sizes at least 1 and not absurd (so that
  /// no count overflows), heads that divide width, 0 <= dropout < 1, a positive epsilon.
  void check() const;

  friend bool operator==(const Gpt2Shape&, const Gpt2Shape&) = default;
};

/// "gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl" (the published sizes), "gpt2-10b" (DeepSpeed's ZeRO
/// tutorial: 50 layers, width 4096, 32 heads).
std::span<const std::string_view> gpt2_names();

/// The shape of that name. Throws Config for an unknown one, listing those there are.
Gpt2Shape gpt2_shape(std::string_view name);

}  // namespace zero
