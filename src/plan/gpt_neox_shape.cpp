#include "zero/gpt_neox_shape.h"

#include <string>
#include <utility>

#include "plan/shape_check.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr const char* kNeox = "gpt_neox";

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

}  // namespace zero
