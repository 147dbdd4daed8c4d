#pragma once
// Products of bf16 and fp32 matrices that are faster than LibTorch's on CPU.

#include <ATen/core/Tensor.h>

#include <optional>

namespace zero::detail {

/// left [m, k] by right [k, n], plus `bias` [n] on each row where it is defined: at::mm's or at::addmm's
/// result, contiguous. The faster of the two ways below; empty where neither is open: call LibTorch
/// then.
std::optional<at::Tensor> fast_product(const at::Tensor& left, const at::Tensor& right,
                                       const at::Tensor& bias = {});

/// left by right, written to `out` [m, n], whose rows may lie apart. False, and nothing done, where the way
/// of tiles is not open.
bool product_into(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right);

/// By our kernels (operators/product/product.h): bf16 by AMX or vectors, in fp32, rounded once; fp32 by
/// vectors. Empty where the processor has none or LibTorch is faster, or an operand is no such matrix on CPU
/// that lies in rows or columns, is small, or has another dtype or size than the others need.
std::optional<at::Tensor> product_of_tiles(const at::Tensor& left, const at::Tensor& right,
                                           const at::Tensor& bias = {});

/// left [pairs, m, k] by right [pairs, k, n], each pair as above: at::bmm's result. Empty, too, where
/// LibTorch multiplies batches faster: everywhere but in bf16 by vectors.
std::optional<at::Tensor> products_of_pairs(const at::Tensor& left, const at::Tensor& right);

/// bf16 by LibTorch, with a copy of `left` or of the result. oneDNN takes half as long again where rows start
/// anywhere, at multiples of the 100,514 bytes of GPT-2's vocabulary, say; a copy whose rows start at
/// multiples of 64 bytes costs less. Empty where none would pay.
std::optional<at::Tensor> product_of_odd_rows(const at::Tensor& left, const at::Tensor& right);

/// Memory of a matrix [rows, columns] whose rows start at multiples of 64 bytes.
at::Tensor empty_aligned_rows(int64_t rows, int64_t columns, const at::TensorOptions& options);

}  // namespace zero::detail
