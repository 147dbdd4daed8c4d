#pragma once
// Launches of the fused operators' kernels; no tensors, so that the CUDA compiler sees little.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "optim/kernels/kernels.h"

namespace zero::kernels::cuda {

/// The pointers are the device's; `rule` and `row` as fused_operators.h says. They enqueue and return.
cudaError_t update(int64_t rule, const Buffers& buffers, const void* row, int64_t count, cudaStream_t stream);
/// sums: [blocks of `block` elements, sums of the rule].
cudaError_t direction(int64_t rule, const Buffers& buffers, const void* row, int64_t count, int64_t block,
                      double* sums, cudaStream_t stream);
/// partials: [n, sums]; totals: [pieces, sums].
cudaError_t ordered_totals(const double* partials, int64_t sums, const int64_t* ends, int64_t pieces,
                           double* totals, cudaStream_t stream);
/// digits: [pieces, sums * kDigits].
cudaError_t exact_totals(const double* partials, int64_t sums, const int64_t* ends, int64_t pieces,
                         double* digits, cudaStream_t stream);

/// fused_operators::Rows.
struct RowsOnDevice {
  void* table;
  const int64_t* parameters;
  int64_t count;
};
cudaError_t decide(int64_t rule, const RowsOnDevice& rows, const double* squared_norm, const double* used,
                   double gradient_scale, double max_norm, cudaStream_t stream);
cudaError_t apply_sums(int64_t rule, const RowsOnDevice& rows, const double* sums, cudaStream_t stream);
/// sums: [blocks of `block` elements].
cudaError_t sums_of_squares(const void* values, Element type, int64_t count, int64_t block, double* sums,
                            cudaStream_t stream);

}  // namespace zero::kernels::cuda
