#pragma once
// Softmax attention of one head over rows of fp32 or bf16, forward and backward. Everything in between is
// fp32.

#include <cstdint>
#include <span>
#include <string_view>

namespace zero::attention {

/// A matrix of one head: row i begins i * stride elements behind `data`, its elements lie side by side.
struct Rows {
  const void* data;
  int64_t stride;
};
struct WritableRows {
  void* data;
  int64_t stride;
};

/// queries [queries, width], keys and values [keys, width]; all sizes are at least 1.
struct Shape {
  int64_t queries, keys, width;
  bool causal;  // query i sees keys 0 to i only
  bool half;    // elements are bf16, not fp32
  float scale;  // of the products of queries and keys
};

/// Elements of fp32 scratch that a call needs, at a multiple of 64 bytes.
int64_t forward_scratch_numel(const Shape& shape);
int64_t backward_scratch_numel(const Shape& shape);

/// out = softmax(scale * queries keys^T) values; log_sums[i] = log(sum(exp(row i))). Thread safe for
/// different scratch and outputs.
using Forward = void (*)(const Shape&, Rows queries, Rows keys, Rows values, WritableRows out,
                         float* log_sums, float* scratch);

struct Gradients {
  WritableRows queries, keys, values;
};
/// From the gradient of `out` those of queries, keys and values.
using Backward = void (*)(const Shape&, Rows queries, Rows keys, Rows values, Rows out, Rows out_gradient,
                          const float* log_sums, const Gradients& gradients, float* scratch);

/// Compiled for one kind of vector registers. Sums of different kinds differ in their last bits.
struct Kernels {
  std::string_view name;
  int64_t longest_half;  // queries or keys of bf16; of more, LibTorch's large blocks are faster
  Forward forward;
  Backward backward;
};

/// Those that this processor runs, the last of them fastest.
std::span<const Kernels* const> available_kernels();
const Kernels& best_kernels();

}  // namespace zero::attention
