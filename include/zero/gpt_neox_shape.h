#pragma once
// The shape of a GPT-NeoX as plain numbers: what the plan and the configuration need, without tensors.
// Black et al., "GPT-NeoX-20B: An Open-Source Autoregressive Language Model" (2022). Parameter names are
// Hugging Face's.

#include <cstdint>

namespace zero {

struct GptNeoxShape {
  int64_t vocab_size = 50432;
  int64_t context_length = 2048;  // longest sequence, in tokens
  int64_t layers = 44;
  int64_t width = 6144;  // of the residual stream
  int64_t heads = 64;    // must divide width
  int64_t mlp_width = 24576;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  double rotary_fraction = 0.25;  // of each head; the rest is not rotated
  bool parallel_residual = true;  // attention and MLP read the same input; false: one after the other
  bool tanh_gelu = false;         // GELU by its tanh approximation
  bool tied_head = false;         // the head is the token embedding

  int64_t head_width() const { return width / heads; }
  /// Elements of a head that are rotated, rounded down.
  int64_t rotary_width() const;

  /// Throws Config naming the field, its value and what is allowed.
  void check() const;

  friend bool operator==(const GptNeoxShape&, const GptNeoxShape&) = default;
};

}  // namespace zero
