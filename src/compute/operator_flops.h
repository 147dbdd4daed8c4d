#pragma once
// Floating-point operations of LibTorch's operators, from their names and the shapes of their operands:
// matrix products, attention, convolutions, recurrent layers; everything else counts nothing.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>

namespace zero {

enum class FlopsRule : uint8_t {
  None,
  Product,
  AddedProduct,
  Attention,
  AttentionBackward,
  Convolution,
  ConvolutionBackward,
  RecurrentLayer
};

/// Of the operator "aten::addmm", say: a name without the overload.
FlopsRule flops_rule(const std::string& name);

/// Floating-point operations of one call; `operands` are its tensor arguments in order, `result` the first
/// result. Attention counts as dense, masked or not.
double flops_of(FlopsRule rule, std::span<const at::Tensor> operands, const at::Tensor& result);

}  // namespace zero
