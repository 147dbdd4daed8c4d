#pragma once
// Sums over the rows of a matrix of bf16: the gradient of a bias. LibTorch's add up four columns' vectors at
// a time, in rows that lie far apart; these read whole rows.

#include <ATen/core/Tensor.h>

namespace zero::detail {

/// Whether the function below takes x: on CPU, bf16, not empty, [..., columns] whose rows lie at equal
/// distances: contiguous, or a matrix of contiguous rows.
bool has_fast_column_sums(const at::Tensor& x);

/// The sum of all rows, [columns] of bf16; added in fp32 and rounded once.
at::Tensor fast_column_sums(const at::Tensor& x);

}  // namespace zero::detail
