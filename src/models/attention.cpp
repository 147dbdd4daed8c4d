#include "models/attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace zero {
namespace {

// [batch, kv_heads, n, width] -> [batch, heads, n, width]: neighbouring heads share keys.
torch::Tensor repeated(const torch::Tensor& x, int64_t heads) {
  const int64_t each = heads / x.size(1);
  if (each == 1) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), x.size(1), each, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

std::vector<float> frequencies(int64_t width, double theta, const RopeScaling& scaling) {
  std::vector<float> result;
  for (int64_t i = 0; i < width; i += 2) {
    double frequency = 1 / std::pow(theta, static_cast<double>(i) / static_cast<double>(width));
    if (scaling.factor > 0) {
      const double waves = static_cast<double>(scaling.original_context) * frequency / (2 * std::numbers::pi);
      const double kept =
          (waves - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
      const double share = std::clamp(kept, 0.0, 1.0);
      frequency *= share + (1 - share) / scaling.factor;
    }
    result.push_back(static_cast<float>(frequency));
  }
  return result;
}

}  // namespace

torch::Tensor causal_attention(const torch::Tensor& queries, const torch::Tensor& keys,
                               const torch::Tensor& values, double dropout, KeyValueCache* cache,
                               int64_t layer) {
  const int64_t batch = queries.size(0), heads = queries.size(1), count = queries.size(2);
  const int64_t seen = cache ? cache->length() : 0;
  auto all_keys = keys, all_values = values;
  if (cache) std::tie(all_keys, all_values) = cache->append(layer, keys, values);
  std::optional<torch::Tensor> mask;
  // A single new position sees everything; several need their own triangle behind what was seen.
  if (seen > 0 && count > 1)
    mask = torch::ones({count, seen + count}, queries.options().dtype(torch::kBool)).tril(seen);
  const auto y = torch::scaled_dot_product_attention(queries, repeated(all_keys, heads),
                                                     repeated(all_values, heads), mask, dropout,
                                                     /*is_causal=*/seen == 0);
  return y.transpose(1, 2).reshape({batch, count, -1});
}

Rotation::Rotation(int64_t width, double theta, const RopeScaling& scaling, int64_t begin, int64_t count,
                   const torch::Tensor& like)
    : width_(width) {
  std::vector<float> found = frequencies(width, theta, scaling);
  const auto table = torch::from_blob(found.data(), {width / 2}, torch::kFloat).clone().to(like.device());
  const auto positions = torch::arange(begin, begin + count, table.options());
  const auto angles = torch::outer(positions, table);
  cosines_ = angles.cos().to(like.scalar_type());
  sines_ = angles.sin().to(like.scalar_type());
}

torch::Tensor Rotation::apply(const torch::Tensor& x) const {
  const int64_t half = width_ / 2, head_width = x.size(3);
  const auto a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
  std::vector<torch::Tensor> parts{a * cosines_ - b * sines_, b * cosines_ + a * sines_};
  if (head_width > width_) parts.push_back(x.narrow(3, width_, head_width - width_));
  return torch::cat(parts, 3);
}

}  // namespace zero
