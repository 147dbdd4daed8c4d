#include "zero/llama_shape.h"

#include <string>
#include <utility>

#include "plan/shape_check.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr const char* kLlama = "llama";

ModuleSpec llama_block(const std::string& name, const LlamaShape& s) {
  using namespace shapes;
  const int64_t queries = s.heads * s.head_width, keys = s.kv_heads * s.head_width;
  const auto layer = [&](const char* child, int64_t in, int64_t out) {
    return linear(name + child, in, out, false);
  };
  return module(name, {module(name + ".self_attn", {layer(".self_attn.q_proj", s.width, queries),
                                                    layer(".self_attn.k_proj", s.width, keys),
                                                    layer(".self_attn.v_proj", s.width, keys),
                                                    layer(".self_attn.o_proj", queries, s.width)}),
                       module(name + ".mlp", {layer(".mlp.gate_proj", s.width, s.mlp_width),
                                              layer(".mlp.up_proj", s.width, s.mlp_width),
                                              layer(".mlp.down_proj", s.mlp_width, s.width)}),
                       weight_only(name + ".input_layernorm", {s.width}),
                       weight_only(name + ".post_attention_layernorm", {s.width})});
}

}  // namespace

void LlamaShape::check() const {
  using namespace shapes;
  check_range(kLlama, "vocab_size", vocab_size, kMostTokens);
  check_range(kLlama, "context_length", context_length, kMostTokens);
  check_range(kLlama, "layers", layers, kMostLayers);
  check_range(kLlama, "width", width, kMostWidth);
  check_range(kLlama, "mlp_width", mlp_width, kMostWidth * 4);
  check_range(kLlama, "head_width", head_width, kMostWidth);
  check_range(kLlama, "heads", heads, kMostWidth / head_width);
  check_range(kLlama, "kv_heads", kv_heads, heads);
  require(
      heads % kv_heads == 0, ErrorKind::Config, "llama kv_heads",
      std::to_string(heads) + " heads are not a multiple of " + std::to_string(kv_heads) + " heads of keys");
  require(head_width % 2 == 0, ErrorKind::Config, "llama head_width",
          "expected an even number, as pairs are rotated, got " + std::to_string(head_width));
  check_positive(kLlama, "norm_epsilon", norm_epsilon);
  check_positive(kLlama, "rope_theta", rope_theta);
  if (rope_scaling.factor == 0) return;
  check_positive(kLlama, "rope_scaling factor", rope_scaling.factor);
  check_positive(kLlama, "rope_scaling low_freq_factor", rope_scaling.low_freq_factor);
  check_positive(kLlama, "rope_scaling high_freq_factor - low_freq_factor",
                 rope_scaling.high_freq_factor - rope_scaling.low_freq_factor);
  check_range(kLlama, "rope_scaling original_context", rope_scaling.original_context, kMostTokens);
}

int64_t LlamaShape::parameter_count() const {
  check();
  const int64_t attention = 2 * width * head_width * (heads + kv_heads);
  const int64_t block_numel = attention + 3 * width * mlp_width + 2 * width;
  return (tied_head ? 1 : 2) * vocab_size * width + layers * block_numel + width;
}

ModuleSpec llama_spec(const LlamaShape& shape) {
  using namespace shapes;
  shape.check();
  ModuleSpec blocks = module("model.layers");
  blocks.is_list = true;
  for (int64_t i = 0; i < shape.layers; i++)
    blocks.children.push_back(llama_block("model.layers." + std::to_string(i), shape));
  ModuleSpec root =
      module("", {module("model", {weight_only("model.embed_tokens", {shape.vocab_size, shape.width}),
                                   std::move(blocks), weight_only("model.norm", {shape.width})})});
  if (!shape.tied_head) root.children.push_back(weight_only("lm_head", {shape.vocab_size, shape.width}));
  return root;
}

}  // namespace zero
