#pragma once
// Causal attention of all models, and the rotations of those that have them.

#include <torch/types.h>

#include <cstdint>

#include "zero/language_model.h"

namespace zero {

/// Queries [batch, heads, n, width] over keys and values [batch, kv_heads, n, width], where kv_heads divides
/// heads; with a cache, the n positions stand behind those it holds of that layer, and are added. -> [batch,
/// n, heads * width].
torch::Tensor causal_attention(const torch::Tensor& queries, const torch::Tensor& keys,
                               const torch::Tensor& values, double dropout, KeyValueCache* cache,
                               int64_t layer);

/// Rotary position embedding (Su et al. 2021) in the order of Hugging Face's models: element i is paired with
/// i + half.
class Rotation {
 public:
  /// For positions [begin, begin + count) of elements 0..width-1 of each head, in the type of `like`.
  Rotation(int64_t width, double theta, const RopeScaling& scaling, int64_t begin, int64_t count,
           const torch::Tensor& like);

  /// x [batch, heads, count, head_width], head_width >= width; what is beyond width stays.
  torch::Tensor apply(const torch::Tensor& x) const;

 private:
  int64_t width_;
  torch::Tensor cosines_, sines_;  // [count, width / 2]
};

}  // namespace zero
