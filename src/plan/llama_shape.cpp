#include "zero/llama_shape.h"

#include <string>
#include <utility>

#include "plan/shape_check.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr const char* kLlama = "llama";

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

}  // namespace zero
