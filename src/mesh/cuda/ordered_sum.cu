// Sums over ranks in rank order, an element a thread. Compiled with -fmad=false: the bits are the CPU's.

#include "mesh/cuda/ordered_sum.h"
#include "mesh/sum_element.h"

namespace zero::detail::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostGrid = 1 << 20;  // beyond, a thread takes several elements

template <class In>
struct Typed {
  const In* rows[kMostRows];
};

template <class In>
__global__ void sum_rows(float* out, Typed<In> in, int count, int64_t numel, bool accumulate) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < numel; i += stride) {
    const float sum = sum_in_rank_order(in.rows, count, i);
    out[i] = accumulate ? out[i] + sum : sum;
  }
}

template <class In>
void launch(float* out, const Rows& rows, int64_t numel, bool accumulate, cudaStream_t stream) {
  Typed<In> typed{};
  for (int row = 0; row < rows.count; ++row) typed.rows[row] = static_cast<const In*>(rows.data[row]);
  const int64_t grid = (numel + kThreads - 1) / kThreads;
  sum_rows<<<static_cast<unsigned>(grid < kMostGrid ? grid : kMostGrid), kThreads, 0, stream>>>(
      out, typed, rows.count, numel, accumulate);
}

}  // namespace

cudaError_t ordered_sum(float* out, const Rows& rows, bool is_bf16, int64_t numel, bool accumulate,
                        cudaStream_t stream) {
  if (numel == 0) return cudaSuccess;
  if (is_bf16) {
    launch<uint16_t>(out, rows, numel, accumulate, stream);
  } else {
    launch<float>(out, rows, numel, accumulate, stream);
  }
  return cudaGetLastError();
}

}  // namespace zero::detail::cuda
