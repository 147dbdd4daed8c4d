#include "models/layers.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "zero/error.h"

namespace zero {

TableImpl::TableImpl(int64_t rows, int64_t width)
    : TableImpl(torch::empty({rows, width}).normal_(0, kInitialDeviation)) {}

TableImpl::TableImpl(const torch::Tensor& values) : weight(register_parameter("weight", values)) {}

void LinearLayerImpl::adapt(int64_t rank, double scale) {
  require(!lora_a_, ErrorKind::Usage, "adapter", "the layer has one already");
  scale_ = scale;
  // Kaiming's uniform with slope sqrt(5), which is 1 / sqrt(in).
  const double bound = 1 / std::sqrt(static_cast<double>(in_));
  lora_a_ = register_module("lora_A", Table(torch::empty({rank, in_}).uniform_(-bound, bound)));
  lora_b_ = register_module("lora_B", Table(torch::zeros({out_, rank})));
}

torch::Tensor LinearLayerImpl::adapted(const torch::Tensor& y, const torch::Tensor& x) const {
  if (!lora_a_) return y;
  return y + torch::linear(torch::linear(x, lora_a_->weight), lora_b_->weight) * scale_;
}

LinearImpl::LinearImpl(int64_t in, int64_t out, bool with_bias) : LinearLayerImpl(in, out) {
  weight = register_parameter("weight", torch::empty({out, in}).normal_(0, kInitialDeviation));
  if (with_bias) bias = register_parameter("bias", torch::zeros({out}));
}

torch::Tensor LinearImpl::forward(const torch::Tensor& x) {
  return adapted(torch::linear(x, weight, bias), x);
}

RmsNormImpl::RmsNormImpl(int64_t width, double epsilon)
    : weight(register_parameter("weight", torch::ones({width}))), epsilon_(epsilon) {}

torch::Tensor RmsNormImpl::forward(const torch::Tensor& x) {
  const auto wide = x.to(torch::kFloat);
  const auto scale = torch::rsqrt(wide.square().mean(-1, /*keepdim=*/true) + epsilon_);
  return weight * (wide * scale).to(x.scalar_type());
}

torch::nn::LayerNorm layer_norm(int64_t width, double epsilon) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(epsilon));
}

}  // namespace zero
