#pragma once
// Products of bf16 matrices with odd rows. oneDNN takes half as long again where rows start anywhere: at
// multiples of the 100,514 bytes of GPT-2's vocabulary, say. A copy whose rows start at multiples of 64 bytes
// costs less.

#include <ATen/core/Tensor.h>

#include <optional>

namespace zero::detail {

/// at::mm(left, right) by way of such copies of `left` or of the result, contiguous as at::mm's. Empty where
/// no copy would pay: call at::mm then.
std::optional<at::Tensor> product_of_odd_rows(const at::Tensor& left, const at::Tensor& right);

/// Memory of a matrix [rows, columns] whose rows start at multiples of 64 bytes.
at::Tensor empty_aligned_rows(int64_t rows, int64_t columns, const at::TensorOptions& options);

}  // namespace zero::detail
