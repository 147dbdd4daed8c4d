#pragma once
// Reductions whose bits depend only on the values and the number of ranks: elements are added in rank order.

#include <torch/types.h>

#include <vector>

#include "mesh/group_parts.h"

namespace zero::detail {

/// out [n] fp32 or fp64 = parts[0] + parts[1] + ... from left to right, each converted to out's type first;
/// with `accumulate` that sum is added to out's old value. Out in bf16 or fp16 is that sum in fp32, rounded
/// once. Parts are 1-D of n elements, fp32, bf16, fp16 or fp64, and none is `out`.
void ordered_sum(at::Tensor out, const std::vector<at::Tensor>& parts, bool accumulate);

/// The same into several outputs: rows [n] of n elements, of which the outputs take one piece after the
/// other. Row number `rank` is that of a part's `own`, where it is defined.
void ordered_sums(const std::vector<ReducePart>& outs, const std::vector<at::Tensor>& rows, int rank);

/// The same on the CPU over raw rows, of n elements of `dtype` each.
void ordered_sums(const std::vector<ReducePart>& outs, const std::vector<const void*>& rows,
                  at::ScalarType dtype, int rank);

/// Defines zero::ordered_sum and zero::add_ordered_sum, the same in fp32 for devices, unless they are known.
void define_sum_operators();

/// out [n] = the greatest of the parts; NaN where one is NaN.
void ordered_max(at::Tensor out, const std::vector<at::Tensor>& parts);

/// 1-D tensor [parts * n] as its `parts` equal pieces.
std::vector<at::Tensor> equal_parts(const at::Tensor& tensor, int parts);

}  // namespace zero::detail
