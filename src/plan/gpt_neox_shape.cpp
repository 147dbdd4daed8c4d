#include "zero/gpt_neox_shape.h"

#include <string>
#include <utility>

#include "plan/shape_check.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr const char* kNeox = "gpt_neox";

ModuleSpec neox_block(const std::string& name, const GptNeoxShape& s) {
  using namespace shapes;
  const auto layer = [&](const char* child, int64_t in, int64_t out) {
    return linear(name + child, in, out, true);
  };
  return module(name, {layer_norm(name + ".input_layernorm", s.width),
                       layer_norm(name + ".post_attention_layernorm", s.width),
                       module(name + ".attention", {layer(".attention.query_key_value", s.width, 3 * s.width),
                                                    layer(".attention.dense", s.width, s.width)}),
                       module(name + ".mlp", {layer(".mlp.dense_h_to_4h", s.width, s.mlp_width),
                                              layer(".mlp.dense_4h_to_h", s.mlp_width, s.width)})});
}

}  // namespace

int64_t GptNeoxShape::rotary_width() const {
  return static_cast<int64_t>(static_cast<double>(head_width()) * rotary_fraction);
}

void GptNeoxShape::check() const {
  using namespace shapes;
  check_range(kNeox, "vocab_size", vocab_size, kMostTokens);
  check_range(kNeox, "context_length", context_length, kMostTokens);
  check_range(kNeox, "layers", layers, kMostLayers);
  check_range(kNeox, "width", width, kMostWidth);
  check_range(kNeox, "mlp_width", mlp_width, kMostWidth * 4);
  check_range(kNeox, "heads", heads, width);
  require(width % heads == 0, ErrorKind::Config, "gpt_neox heads",
          "width " + std::to_string(width) + " is not a multiple of " + std::to_string(heads) + " heads",
          "choose heads that divide the width");
  check_positive(kNeox, "norm_epsilon", norm_epsilon);
  check_positive(kNeox, "rope_theta", rope_theta);
  require(rotary_fraction >= 0 && rotary_fraction <= 1, ErrorKind::Config, "gpt_neox rotary_fraction",
          "expected 0 to 1, got " + std::to_string(rotary_fraction));
  require(rotary_width() >= 2 && rotary_width() % 2 == 0, ErrorKind::Config, "gpt_neox rotary_fraction",
          "expected an even number of rotated elements in a head, at least 2, got " +
              std::to_string(rotary_width()) + " of " + std::to_string(head_width()));
}

int64_t GptNeoxShape::parameter_count() const {
  check();
  const int64_t attention = 4 * width * width + 4 * width, mlp = 2 * width * mlp_width + mlp_width + width;
  return (tied_head ? 1 : 2) * vocab_size * width + layers * (attention + mlp + 4 * width) + 2 * width;
}

ModuleSpec gpt_neox_spec(const GptNeoxShape& shape) {
  using namespace shapes;
  shape.check();
  ModuleSpec blocks = module("gpt_neox.layers");
  blocks.is_list = true;
  for (int64_t i = 0; i < shape.layers; i++)
    blocks.children.push_back(neox_block("gpt_neox.layers." + std::to_string(i), shape));
  ModuleSpec root = module(
      "", {module("gpt_neox", {weight_only("gpt_neox.embed_in", {shape.vocab_size, shape.width}),
                               std::move(blocks), layer_norm("gpt_neox.final_layer_norm", shape.width)})});
  if (!shape.tied_head) root.children.push_back(weight_only("embed_out", {shape.vocab_size, shape.width}));
  return root;
}

}  // namespace zero
