#pragma once
// Launches of the fused operators' kernels; no tensors, so that the CUDA compiler sees little.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "optim/kernels/kernels.h"

namespace zero::kernels::cuda {

/// The pointers are the device's; `rule` and `scalars` as fused_operators.h says. They enqueue and return.
cudaError_t update(int64_t rule, const Buffers& buffers, std::string_view scalars, int64_t count,
                   cudaStream_t stream);
/// sums: [blocks of `block` elements, sums of the rule].
cudaError_t direction(int64_t rule, const Buffers& buffers, std::string_view scalars, int64_t count,
                      int64_t block, double* sums, cudaStream_t stream);
/// sums: [blocks of `block` elements].
cudaError_t sums_of_squares(const void* values, Element type, int64_t count, int64_t block, double* sums,
                            cudaStream_t stream);

}  // namespace zero::kernels::cuda
