#include "zero/gpt2_shape.h"

#include <array>
#include <cmath>
#include <string>
#include <utility>

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

void check_range(const char* field, int64_t value, int64_t largest) {
  if (value >= 1 && value <= largest) return;
  fail(ErrorKind::Config, std::string("gpt2 ") + field,
       "expected 1 to " + std::to_string(largest) + ", got " + std::to_string(value));
}

ModuleSpec module(const std::string& name, std::vector<ModuleSpec> children = {}) {
  ModuleSpec spec;
  spec.name = name;
  spec.children = std::move(children);
  return spec;
}

ModuleSpec with_bias(const std::string& name, std::vector<int64_t> weight, int64_t bias) {
  ModuleSpec spec = module(name);
  spec.parameters.push_back({.name = name + ".weight", .shape = std::move(weight)});
  spec.parameters.push_back({.name = name + ".bias", .shape = {bias}});
  return spec;
}

ModuleSpec embedding(const std::string& name, int64_t rows, int64_t width) {
  ModuleSpec spec = module(name);
  spec.parameters.push_back({.name = name + ".weight", .shape = {rows, width}});
  return spec;
}

ModuleSpec block(const std::string& name, int64_t width) {
  auto layer_norm = [&](const char* child) { return with_bias(name + child, {width}, width); };
  auto linear = [&](const char* child, int64_t in, int64_t out) {
    return with_bias(name + child, {in, out}, out);
  };
  return module(name, {layer_norm(".ln_1"),
                       module(name + ".attn", {linear(".attn.c_attn", width, 3 * width),
                                               linear(".attn.c_proj", width, width)}),
                       layer_norm(".ln_2"),
                       module(name + ".mlp", {linear(".mlp.c_fc", width, 4 * width),
                                              linear(".mlp.c_proj", 4 * width, width)})});
}

}  // namespace

void Gpt2Shape::check() const {
  // With these bounds every product below stays under 2^63.
  check_range("vocab_size", vocab_size, (int64_t{1} << 31) - 1);
  check_range("context_length", context_length, (int64_t{1} << 31) - 1);
  check_range("layers", layers, int64_t{1} << 16);
  check_range("width", width, int64_t{1} << 20);
  check_range("heads", heads, width);
  require(width % heads == 0, ErrorKind::Config, "gpt2 heads",
          "width " + std::to_string(width) + " is not a multiple of " + std::to_string(heads) + " heads",
          "choose heads that divide the width");
  require(dropout >= 0 && dropout < 1, ErrorKind::Config, "gpt2 dropout",
          "expected 0 <= dropout < 1, got " + std::to_string(dropout));
  require(std::isfinite(layer_norm_epsilon) && layer_norm_epsilon > 0, ErrorKind::Config,
          "gpt2 layer_norm_epsilon", "expected a positive number, got " + std::to_string(layer_norm_epsilon));
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
  shape.check();
  ModuleSpec blocks = module("h");
  blocks.is_list = true;
  for (int64_t i = 0; i < shape.layers; i++)
    blocks.children.push_back(block("h." + std::to_string(i), shape.width));

  return module("", {embedding("wte", shape.vocab_size, shape.width),
                     embedding("wpe", shape.context_length, shape.width), std::move(blocks),
                     with_bias("ln_f", {shape.width}, shape.width)});
}

}  // namespace zero
