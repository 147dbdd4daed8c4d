#pragma once
// The shape of any model that a configuration can name, without tensors.

#include <cstdint>
#include <string>
#include <variant>

#include "zero/config.h"
#include "zero/gpt2_shape.h"
#include "zero/gpt_neox_shape.h"
#include "zero/llama_shape.h"
#include "zero/plan.h"

namespace zero {

using ModelShape = std::variant<Gpt2Shape, LlamaShape, GptNeoxShape>;

/// Logits that the loss of a tied head makes at a time (CPU, fp32 and bf16).
inline constexpr int64_t kLogitsAtATime = int64_t{1} << 27;

/// `model`. Throws Config for an impossible shape.
ModelShape shape_of(const Config& config);

/// The module tree of the model of that shape.
ModuleSpec model_spec(const ModelShape& shape);

/// The module tree that is trained: model_spec() with the adapters of `lora`, and trainable where `frozen`,
/// `trainable` and `lora` say so. Throws Config for a pattern of these that matches nothing, and where
/// nothing is left to train.
ModuleSpec trained_spec(const Config& config);

int64_t context_length_of(const ModelShape& shape);
int64_t vocab_size_of(const ModelShape& shape);

}  // namespace zero
