#pragma once
// Softmax attention without a mask or with the causal one. LibTorch's flash attention for CPU calls a matrix
// product of oneDNN's for every block of every head, whose preparation costs more than the block; ours is
// loops of its own (tile products of the whole head where the processor has AMX), and keeps the weights in
// fp32, or in twice bf16, where LibTorch rounds them to bf16.

#include <ATen/core/Tensor.h>

#include <tuple>

namespace zero::detail {

/// Whether the functions below are worth it and take these: on CPU, [batch, heads, length, width] of one
/// dtype, fp32 or bf16, 16 queries or more (of bf16 at most 767 where the processor has AVX-512, or 4096
/// where it has AMX), rows of up to 512 elements side by side.
bool has_fast_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values);

/// softmax(scale queries keys^T) values, in memory of [batch, length, heads, width]; and the logarithms of
/// the rows' sums, fp32 [batch, heads, length].
std::tuple<at::Tensor, at::Tensor> fast_attention(const at::Tensor& queries, const at::Tensor& keys,
                                                  const at::Tensor& values, bool causal, double scale);

/// Gradients of queries, keys and values from `gradient`, that of `out`.
std::tuple<at::Tensor, at::Tensor, at::Tensor> fast_attention_backward(
    const at::Tensor& gradient, const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
    const at::Tensor& out, const at::Tensor& log_sums, bool causal, double scale);

}  // namespace zero::detail
