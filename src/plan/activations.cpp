#include "zero/activations.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {

// Whole numbers are exact in a double up to here, so nothing overflows before it is refused.
constexpr double kMost = 1LL << 53;

/// One micro-batch. Figures are bytes of a token, `e` those of an element.
struct Batch {
  double tokens, sequence, e;
};

// What a layer keeps: the inputs of its products and of its norms, what GELU reads, and attention's queries,
// keys, values and result.
double layer_of(const Gpt2Shape& s, const Batch& b) {
  const double width = static_cast<double>(s.width), norms = 4 * width, attention = 4 * width;
  double bytes = (norms + attention + 8 * width) * b.e;
  // Attention with dropout makes its matrices in fp32 and keeps three.
  if (s.dropout > 0) bytes += 3 * 4 * b.sequence * static_cast<double>(s.heads) + 10 * width;
  return bytes;
}
double layer_of(const GptNeoxShape& s, const Batch& b) {
  // Both norms may read the same input. Values stay inside what the query, key and value came in.
  const double norms = s.parallel_residual ? 3 : 4, attention = 3 + 2 + 1;
  return ((norms + attention) * static_cast<double>(s.width) + 2 * static_cast<double>(s.mlp_width)) * b.e;
}
// Beside its result: its input in fp32 and what the weight is multiplied by.
double norm_of(const LlamaShape& s, const Batch& b) { return static_cast<double>(s.width) * (4 + b.e); }
double layer_of(const LlamaShape& s, const Batch& b) {
  // Keys and values are repeated for the heads that share them.
  const double attention = 4 * static_cast<double>(s.heads * s.head_width);
  const double mlp = 4 * static_cast<double>(s.mlp_width);
  return 2 * (norm_of(s, b) + static_cast<double>(s.width) * b.e) + (attention + mlp) * b.e;
}

// What all layers keep beside the first one's input, and what one of them makes again, of all tokens.
struct Layers {
  double kept, again;
};
template <class Shape>
Layers layers_of(const Shape& s, const Batch& b, const RecomputePolicy& recompute) {
  const double input = b.tokens * static_cast<double>(s.width) * b.e, whole = b.tokens * layer_of(s, b);
  const auto count = static_cast<double>(s.layers), all = count * whole - input;
  if (recompute.every == kRecomputeAuto && recompute.memory_bytes < 0) return {.kept = all, .again = 0};
  if (recompute.tier == ActivationTier::Disk && recompute.every != kRecomputeAuto) {
    const auto buffer = static_cast<double>(recompute.buffer_bytes);
    return {.kept = std::min(all, buffer), .again = std::min(all, whole + buffer)};
  }
  if (recompute.every == kRecomputeNone) return {.kept = all, .again = 0};
  if (recompute.every == kRecomputeAuto) {
    const auto allowed = static_cast<double>(recompute.memory_bytes);
    return {.kept = std::min(all, allowed), .again = 0};
  }
  const auto every = static_cast<double>(recompute.every), some = std::ceil(count / every);
  return {.kept = all - some * (whole - input), .again = whole - input};
}

// Between the last layer and the head, and the embedding's dropout.
double ends_of(const Gpt2Shape& s, const Batch& b) {
  return static_cast<double>(s.width) * b.e * (s.dropout > 0 ? 2 : 1);
}
double ends_of(const GptNeoxShape& s, const Batch& b) { return static_cast<double>(s.width) * b.e; }
double ends_of(const LlamaShape& s, const Batch& b) { return norm_of(s, b); }

// Of a whole micro-batch.
template <class Shape>
double loss_of(const Shape& s, const Batch& b) {
  const double width = static_cast<double>(s.width), vocabulary = static_cast<double>(s.vocab_size);
  const double input = b.tokens * width * b.e, weight = vocabulary * width, logits = b.tokens * vocabulary;
  // Logits become their own gradient. Before the weight's is made, of some rows there are log-probabilities
  // in fp32 and, where that is another type, logits once more. The weight's parts are added up in fp32.
  const auto at_a_time = static_cast<double>(kLogitsAtATime);
  const double widened = std::min(logits, static_cast<double>(kLogitsWidened)) * (b.e < 4 ? 4 + 4 : 4);
  const double gradient = weight * (logits <= at_a_time ? b.e : 4 + 4 + b.e);
  return 2 * input + std::min(logits, at_a_time) * b.e + std::max(widened, gradient);
}

int64_t counted(double bytes) {
  require(bytes < kMost, ErrorKind::Config, "micro-batch", "its activations are too large to count",
          "make the micro-batch or its sequences smaller");
  return static_cast<int64_t>(bytes);
}

}  // namespace

ActivationBytes activation_bytes(const ModelShape& shape, int64_t batch, int64_t sequence, Dtype dtype,
                                 const RecomputePolicy& recompute) {
  require(batch >= 1 && sequence >= 1, ErrorKind::Config, "micro-batch",
          "expected at least one sequence of one token, got " + std::to_string(batch) + " of " +
              std::to_string(sequence));
  const Batch b{.tokens = static_cast<double>(batch) * static_cast<double>(sequence),
                .sequence = static_cast<double>(sequence),
                .e = static_cast<double>(itemsize(dtype))};
  return std::visit(
      [&](const auto& s) {
        s.check();
        const Layers layers = layers_of(s, b, recompute);
        const double input = static_cast<double>(s.width) * b.e;
        return ActivationBytes{.kept = counted(layers.kept + b.tokens * (input + ends_of(s, b))),
                               .loss = counted(loss_of(s, b)),
                               .again = counted(layers.again)};
      },
      shape);
}

int64_t peak_bytes(const Plan& plan, const ActivationBytes& activations) {
  const RankPlan& rank = plan.rank;
  const int64_t of_backward = rank.gradient_memory_bytes + rank.largest_gradient_bytes + rank.ahead_bytes;
  const int64_t sums_so_far = plan.accumulation_steps > 1 ? rank.gradient_memory_bytes : 0;
  return rank.total_bytes() - of_backward +
         std::max(of_backward,
                  sums_so_far + activations.kept + std::max(activations.loss, activations.again));
}

}  // namespace zero
