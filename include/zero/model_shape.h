#pragma once
// The shape of any model that a configuration can name, without tensors.

#include <cstdint>
#include <string>
#include <variant>

#include "zero/config.h"
#include "zero/gpt2_shape.h"
#include "zero/gpt_neox_shape.h"
#include "zero/llama_shape.h"

namespace zero {

using ModelShape = std::variant<Gpt2Shape, LlamaShape, GptNeoxShape>;

/// Logits that a loss makes at a time, and how many of them it widens to fp32 at a time on CPU.
inline constexpr int64_t kLogitsAtATime = int64_t{1} << 27;
inline constexpr int64_t kLogitsWidened = int64_t{1} << 19;

/// `model`. Throws Config for an impossible shape.
ModelShape shape_of(const Config& config);

int64_t context_length_of(const ModelShape& shape);
int64_t vocab_size_of(const ModelShape& shape);

}  // namespace zero
