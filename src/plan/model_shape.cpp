#include "zero/model_shape.h"

#include "zero/error.h"

namespace zero {
namespace {

ModelShape llama_shape_of(const ModelConfig& m) {
  const int64_t head_width = m.head_width > 0 ? m.head_width : m.width / m.heads;
  return LlamaShape{.vocab_size = m.vocab_size,
                    .context_length = m.context_length,
                    .layers = m.layers,
                    .width = m.width,
                    .heads = m.heads,
                    .kv_heads = m.kv_heads > 0 ? m.kv_heads : m.heads,
                    .head_width = head_width,
                    .mlp_width = m.mlp_width > 0 ? m.mlp_width : 4 * m.width,
                    .norm_epsilon = m.norm_epsilon,
                    .rope_theta = m.rope_theta,
                    .rope_scaling = m.rope_scaling,
                    .tied_head = m.tied_head.value_or(false)};
}

ModelShape neox_shape_of(const ModelConfig& m) {
  return GptNeoxShape{.vocab_size = m.vocab_size,
                      .context_length = m.context_length,
                      .layers = m.layers,
                      .width = m.width,
                      .heads = m.heads,
                      .mlp_width = m.mlp_width > 0 ? m.mlp_width : 4 * m.width,
                      .norm_epsilon = m.norm_epsilon,
                      .rope_theta = m.rope_theta,
                      .rotary_fraction = m.rotary_fraction,
                      .parallel_residual = m.parallel_residual,
                      .tanh_gelu = m.tanh_gelu,
                      .tied_head = m.tied_head.value_or(false)};
}

ModelShape gpt2_shape_of(const ModelConfig& m) {
  return Gpt2Shape{.vocab_size = m.vocab_size,
                   .context_length = m.context_length,
                   .layers = m.layers,
                   .width = m.width,
                   .heads = m.heads,
                   .dropout = m.dropout,
                   .layer_norm_epsilon = m.norm_epsilon};
}

ModelShape unchecked_shape(const ModelConfig& model) {
  require(model.heads >= 1, ErrorKind::Config, "model.heads", "expected at least 1");
  if (model.type == "gpt2") return gpt2_shape_of(model);
  if (model.type == "llama") return llama_shape_of(model);
  if (model.type == "gpt_neox") return neox_shape_of(model);
  fail(ErrorKind::Unsupported, "model.type", "unknown architecture \"" + model.type + "\"",
       "known ones are gpt2, llama, gpt_neox");
}

}  // namespace

ModelShape shape_of(const Config& config) {
  const ModelShape shape = unchecked_shape(config.model);
  std::visit([](const auto& s) { s.check(); }, shape);
  return shape;
}

int64_t context_length_of(const ModelShape& shape) {
  return std::visit([](const auto& s) { return s.context_length; }, shape);
}

int64_t vocab_size_of(const ModelShape& shape) {
  return std::visit([](const auto& s) { return s.vocab_size; }, shape);
}

}  // namespace zero
