#pragma once
// Products of bf16 matrices that are faster than LibTorch's on CPU: by AMX, or, where the processor
// multiplies no bf16, by LibTorch's own products of fp32, which take a fortieth of the time.

#include <ATen/core/Tensor.h>

#include <optional>

namespace zero::detail {

/// left [m, k] by right [k, n], plus `bias` [n] on each row where it is defined: at::mm's or at::addmm's
/// result, contiguous; sums are fp32, rounded once. Empty where LibTorch is as fast, or an operand is no such
/// matrix of bf16 on CPU: call LibTorch then.
std::optional<at::Tensor> fast_product(const at::Tensor& left, const at::Tensor& right,
                                       const at::Tensor& bias = {});

/// left by right, written to `out` [m, n], whose rows may lie apart. False, and nothing done, where
/// fast_product would be empty.
bool product_into(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right);

/// left [pairs, m, k] by right [pairs, k, n]: at::bmm's result. Empty as above.
std::optional<at::Tensor> fast_products_of_pairs(const at::Tensor& left, const at::Tensor& right);

/// Whether the ways below are faster than LibTorch's here.
bool has_tiled_products();
bool has_widened_products();

/// By AMX: False, and nothing done, where an operand is small or lies neither in rows nor in columns. `bias`
/// may be undefined. All are of bf16, on CPU and fit each other.
bool multiply_by_tiles(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                       const at::Tensor& bias);

/// By products of fp32 of widened parts: at most 36 MiB beside the operands. Any strides.
void multiply_widened(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                      const at::Tensor& bias);

}  // namespace zero::detail
