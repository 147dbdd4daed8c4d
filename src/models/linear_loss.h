#pragma once
// The cross-entropy above a linear layer for some rows at a time: the one loop behind head_loss() and
// linear_cross_entropy().

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <optional>

namespace zero::detail {

/// One call's inputs: hidden [rows, width], weight [vocabulary, width] of its dtype, targets [rows] int64.
struct LinearLoss {
  at::Tensor hidden, weight, bias, targets;  // bias [vocabulary] may be undefined
  int64_t ignore_index = -100, rows_at_a_time = 0;
  double smoothing = 0;

  int64_t rows() const { return hidden.size(0); }
  /// fp32, of fp64 fp64: in which softmax and sums are computed.
  at::ScalarType sums() const { return weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }
};

/// Which gradients are wanted, and what has been added up of them.
struct LinearLossGradients {
  bool of_hidden = false, of_weight = false, of_bias = false;
  at::Tensor hidden = {}, weight = {}, bias = {};
  bool any() const { return of_hidden || of_weight || of_bias; }
};

/// What both are cast to where they are not multiplied as they are: autocast's type, where that is on; fp32,
/// where the head stays fp32 in a model of a narrower type. Nothing: as they are.
std::optional<at::ScalarType> product_type(const at::Tensor& hidden, const at::Tensor& weight);

/// While it lives, this thread's autocast is off: what follows picks its types itself.
class WithoutAutocast {
 public:
  explicit WithoutAutocast(at::DeviceType device);
  ~WithoutAutocast();
  WithoutAutocast(const WithoutAutocast&) = delete;
  WithoutAutocast& operator=(const WithoutAutocast&) = delete;

 private:
  at::DeviceType device_;
  bool was_on_;
};

/// The losses [rows] of type sums(), and into `gradients` what is wanted, of which row r counts scale[r].
/// Without a scale there are no gradients.
at::Tensor work_through(const LinearLoss& problem, const at::Tensor& scale, LinearLossGradients& gradients);

/// A gradient that a forward left in the saved data, times what comes from above: nobody else holds it, so
/// others may be added to it in place. Undefined where there is none.
at::Tensor take_gradient(torch::autograd::AutogradContext* context, const char* name,
                         const at::Tensor& upstream);

}  // namespace zero::detail
