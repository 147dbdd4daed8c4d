#pragma once
// The launch of a sum over ranks; no tensors, so that the CUDA compiler sees little.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace zero::detail::cuda {

inline constexpr int kMostRows = 256;  // as kernel arguments

struct Rows {
  const void* data[kMostRows];
  int count;
};

/// out [numel] (+)= the rows' sum in fp32 from left to right; rows are fp32 or bf16, [numel] each. Enqueues
/// and returns.
cudaError_t ordered_sum(float* out, const Rows& rows, bool is_bf16, int64_t numel, bool accumulate,
                        cudaStream_t stream);

}  // namespace zero::detail::cuda
