#include "zero/gpt2_shape.h"

#include <array>
#include <string>
#include <utility>

#include "plan/shape_check.h"
#include "zero/error.h"

namespace zero {
namespace {

struct NamedShape {
  std::string_view name;
  int64_t layers, width, heads;
};
constexpr std::array kShapes{
    NamedShape{"gpt2", 12, 768, 12},        NamedShape{"gpt2-medium", 24, 1024, 16},
    NamedShape{"gpt2-large", 36, 1280, 20}, NamedShape{"gpt2-xl", 48, 1600, 25},
    NamedShape{"gpt2-10b", 50, 4096, 32},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kShapes.size()> names;
  for (size_t i = 0; i < kShapes.size(); i++) names[i] = kShapes[i].name;
  return names;
}();

ModuleSpec gpt2_block(const std::string& name, int64_t width) {
  using namespace shapes;
  const auto layer = [&](const char* child, int64_t in, int64_t out) {
    return linear(name + child, in, out, /*bias=*/true, /*transposed=*/true);
  };
  return module(
      name,
      {layer_norm(name + ".ln_1", width),
       module(name + ".attn", {layer(".attn.c_attn", width, 3 * width), layer(".attn.c_proj", width, width)}),
       layer_norm(name + ".ln_2", width),
       module(name + ".mlp",
              {layer(".mlp.c_fc", width, 4 * width), layer(".mlp.c_proj", 4 * width, width)})});
}

}  // namespace

void Gpt2Shape::check() const {
  using namespace shapes;
  check_range("gpt2", "vocab_size", vocab_size, kMostTokens);
  check_range("gpt2", "context_length", context_length, kMostTokens);
  check_range("gpt2", "layers", layers, kMostLayers);
  check_range("gpt2", "width", width, kMostWidth);
  check_range("gpt2", "heads", heads, width);
  require(width % heads == 0, ErrorKind::Config, "gpt2 heads",
          "width " + std::to_string(width) + " is not a multiple of " + std::to_string(heads) + " heads",
          "choose heads that divide the width");
  require(dropout >= 0 && dropout < 1, ErrorKind::Config, "gpt2 dropout",
          "expected 0 <= dropout < 1, got " + std::to_string(dropout));
  check_positive("gpt2", "layer_norm_epsilon", layer_norm_epsilon);
}

int64_t Gpt2Shape::parameter_count() const {
  check();
  // A block: 12 w^2 in its four matrices, 9 w in their biases, 4 w in its two norms.
  const int64_t block_numel = 12 * width * width + 13 * width;
  return (vocab_size + context_length) * width + layers * block_numel + 2 * width;
}

std::span<const std::string_view> gpt2_names() { return kNames; }

Gpt2Shape gpt2_shape(std::string_view name) {
  std::string known;
  for (const NamedShape& named : kShapes) {
    if (named.name == name)
      return Gpt2Shape{.layers = named.layers, .width = named.width, .heads = named.heads};
    known.append(known.empty() ? "" : ", ").append(named.name);
  }
  fail(ErrorKind::Config, "model size '" + std::string(name) + "'", "no such GPT-2",
       "expected one of " + known);
}

ModuleSpec gpt2_spec(const Gpt2Shape& shape) {
  using namespace shapes;
  shape.check();
  ModuleSpec blocks = module("h");
  blocks.is_list = true;
  for (int64_t i = 0; i < shape.layers; i++)
    blocks.children.push_back(gpt2_block("h." + std::to_string(i), shape.width));
  return module("", {weight_only("wte", {shape.vocab_size, shape.width}),
                     weight_only("wpe", {shape.context_length, shape.width}), std::move(blocks),
                     layer_norm("ln_f", shape.width)});
}

}  // namespace zero
