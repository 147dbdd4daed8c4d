#pragma once
// The layers that several models share. Weights are drawn once, with ordinary operators, so that construction
// also works where tensors have no data yet.

#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

namespace zero {

inline constexpr double kInitialDeviation = 0.02;

/// A weight [rows, width] alone: an embedding, a head; normal(0, 0.02) unless values are given.
/// torch::nn::Embedding would draw normal(0, 1) first, only to be overwritten.
class TableImpl : public torch::nn::Module {
 public:
  TableImpl(int64_t rows, int64_t width);
  explicit TableImpl(const torch::Tensor& values);

  torch::Tensor weight;
};
TORCH_MODULE(Table);

/// A linear layer that may have a low-rank adapter beside it.
class LinearLayerImpl : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(
      const torch::Tensor& x) = 0;  // [batch, sequence, in] -> [batch, sequence, out]

  /// Adds scale * B A x to the output. A [rank, in] is drawn uniformly as PEFT does, B [out, rank] is zero.
  /// May be called inside lazily(). Throws Usage for a second adapter.
  void adapt(int64_t rank, double scale);

  torch::Tensor weight, bias;

 protected:
  LinearLayerImpl(int64_t in, int64_t out) : in_(in), out_(out) {}
  /// `y` and the adapter's part, if there is one.
  torch::Tensor adapted(const torch::Tensor& y, const torch::Tensor& x) const;

 private:
  int64_t in_, out_;
  Table lora_a_{nullptr}, lora_b_{nullptr};
  double scale_ = 0;
};

/// weight [out, in], normal(0, 0.02), and bias [out], 0, or none.
class LinearImpl : public LinearLayerImpl {
 public:
  LinearImpl(int64_t in, int64_t out, bool with_bias);
  torch::Tensor forward(const torch::Tensor& x) override;
};
TORCH_MODULE(Linear);

/// x / sqrt(mean(x^2) + epsilon) in fp32, times a weight [width].
class RmsNormImpl : public torch::nn::Module {
 public:
  RmsNormImpl(int64_t width, double epsilon);
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;

 private:
  double epsilon_;
};
TORCH_MODULE(RmsNorm);

torch::nn::LayerNorm layer_norm(int64_t width, double epsilon);

}  // namespace zero
