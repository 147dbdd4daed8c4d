#include "zero/activations.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {

// Whole numbers are exact in a double up to here, so nothing overflows before it is refused.
constexpr double kMost = 1LL << 53;

/// One micro-batch. Figures are bytes of a token, `e` those of an element. Of what the parts of a layer make,
/// a rank keeps one of `t` parts; of what stands between them, one of `u`; what a part reads it has whole.
struct Batch {
  double tokens, sequence, e;
  double t = 1, u = 1;
  bool cuts_vocabulary = false;

  /// Of so many heads, columns or rows, the share of the rank that has most: parts are not cut themselves.
  double most_of(double parts) const { return std::ceil(parts / t) / parts; }
  double most_of(int64_t parts) const { return most_of(static_cast<double>(parts)); }
};

// What a layer keeps: the inputs of its products and of its norms, what GELU reads, and attention's queries,
// keys, values and result.
double layer_of(const Gpt2Shape& s, const Batch& b) {
  const double width = static_cast<double>(s.width), norms = 2 * width / b.u + 2 * width,
               attention = 4 * width * b.most_of(s.heads), mlp = 8 * width * b.most_of(4 * s.width);
  double bytes = (norms + attention + mlp) * b.e;
  if (s.dropout == 0) return bytes;
  const double scores = b.sequence * static_cast<double>(s.heads);
  // Attention with dropout makes its matrices in fp32 and keeps three.
  if (b.t == 1) return bytes + 3 * 4 * scores + 10 * width;
  // In the activations' own type: probabilities, these with dropout, and masks, which are drawn whole.
  return bytes + (scores * (1 + 2 * b.most_of(s.heads)) + 2 * width) * b.e;
}
double layer_of(const GptNeoxShape& s, const Batch& b) {
  // Both norms may read the same input. Values stay inside what the query, key and value came in.
  const double inputs = s.parallel_residual ? 1 : 2, outputs = 2;
  const double attention = (3 + 2 + 1) * b.most_of(s.heads);
  return ((inputs / b.u + outputs + attention) * static_cast<double>(s.width) +
          2 * static_cast<double>(s.mlp_width) * b.most_of(s.mlp_width)) *
         b.e;
}
// Beside its result: its input in fp32 and what the weight is multiplied by.
double norm_of(const LlamaShape& s, const Batch& b) { return static_cast<double>(s.width) * (4 + b.e) / b.u; }
double layer_of(const LlamaShape& s, const Batch& b) {
  // Keys and values are repeated for the heads that share them. Where ranks outnumber their heads, all of
  // them are on all ranks, repeated if they were gathered from parts of the sequence.
  const double queries = static_cast<double>(s.heads * s.head_width);
  const double keys = static_cast<double>(s.kv_heads * s.head_width);
  const bool outnumbered = static_cast<double>(s.kv_heads) < b.t;
  // Queries go where their keys are.
  const double part = queries * b.most_of(outnumbered ? s.heads : s.kv_heads);
  const double whole = !outnumbered ? part : b.u > 1 ? queries : keys;
  const double attention = 2 * part + 2 * whole;
  const double mlp = 4 * static_cast<double>(s.mlp_width) * b.most_of(s.mlp_width);
  return 2 * (norm_of(s, b) + static_cast<double>(s.width) * b.e) + (attention + mlp) * b.e;
}

// What all layers keep beside the first one's input, and what one of them makes again, of all tokens.
struct Layers {
  double kept, again;
};
template <class Shape>
Layers layers_of(const Shape& s, const Batch& b, const RecomputePolicy& recompute) {
  const double input = b.tokens * static_cast<double>(s.width) * b.e / b.u;
  const double whole = b.tokens * layer_of(s, b);
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
  return static_cast<double>(s.width) * b.e / b.u * (s.dropout > 0 ? 2 : 1);
}
double ends_of(const GptNeoxShape& s, const Batch& b) { return static_cast<double>(s.width) * b.e / b.u; }
double ends_of(const LlamaShape& s, const Batch& b) { return norm_of(s, b); }

// Of a whole micro-batch.
template <class Shape>
double loss_of(const Shape& s, const Batch& b) {
  const double width = static_cast<double>(s.width), vocabulary = static_cast<double>(s.vocab_size);
  const double input = b.tokens * width * b.e;
  const auto at_a_time = static_cast<double>(kLogitsAtATime);
  if (b.cuts_vocabulary) {
    // A part of the logits of some rows, and in fp32 the same (where that is another type), shifted, and as
    // probabilities.
    const double all = b.tokens * std::ceil(vocabulary / b.t), logits = std::min(all, at_a_time);
    return 2 * input + logits * (b.e + (b.e < 4 ? 4 : 0) + 4 + 4);
  }
  const double weight = vocabulary * width, logits = b.tokens * vocabulary;
  // Logits become their own gradient. Before the weight's is made, of some rows there are log-probabilities
  // in fp32 and, where that is another type, logits once more. The weight's parts are added up in fp32.
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
                                 const RecomputePolicy& recompute, const LayerShare& share) {
  require(share.ranks >= 1, ErrorKind::Config, "ranks that share a layer",
          "expected at least 1, got " + std::to_string(share.ranks));
  require(batch >= 1 && sequence >= 1, ErrorKind::Config, "micro-batch",
          "expected at least one sequence of one token, got " + std::to_string(batch) + " of " +
              std::to_string(sequence));
  Batch b{.tokens = static_cast<double>(batch) * static_cast<double>(sequence),
          .sequence = static_cast<double>(sequence),
          .e = static_cast<double>(itemsize(dtype)),
          .t = static_cast<double>(share.ranks),
          .cuts_vocabulary = share.ranks > 1 && share.vocabulary};
  if (share.sequence) b.u = 1 / b.most_of(sequence);
  return std::visit(
      [&](const auto& s) {
        s.check();
        const Layers layers = layers_of(s, b, recompute);
        const double input = static_cast<double>(s.width) * b.e / b.u;
        return ActivationBytes{.kept = counted(layers.kept + b.tokens * (input + ends_of(s, b))),
                               .loss = counted(loss_of(s, b)),
                               .again = counted(layers.again)};
      },
      shape);
}

}  // namespace zero
