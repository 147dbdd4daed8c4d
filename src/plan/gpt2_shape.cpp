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

}  // namespace zero
