#pragma once
// The shape of a Llama as plain numbers: what the plan and the configuration need, without tensors.
// Touvron et al., "LLaMA: Open and Efficient Foundation Language Models" (2023), with the grouped keys and
// values of Llama 2 and the stretched rotations of Llama 3. Parameter names are Hugging Face's.

#include <cstdint>

#include "zero/rope_scaling.h"

namespace zero {

struct LlamaShape {
  int64_t vocab_size = 32000;
  int64_t context_length = 2048;  // longest sequence, in tokens
  int64_t layers = 22;
  int64_t width = 2048;  // of the residual stream
  int64_t heads = 32;
  int64_t kv_heads = 4;     // of keys and values; must divide heads
  int64_t head_width = 64;  // even
  int64_t mlp_width = 5632;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  bool tied_head = false;  // the head is the token embedding

  /// Throws Config naming the field, its value and what is allowed.
  void check() const;

  friend bool operator==(const LlamaShape&, const LlamaShape&) = default;
};

}  // namespace zero
