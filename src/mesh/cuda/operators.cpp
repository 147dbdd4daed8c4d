// zero::ordered_sum and zero::add_ordered_sum on CUDA tensors: pointers out of tensors, a launch on the
// current stream.

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "mesh/cuda/ordered_sum.h"

namespace zero::detail {
namespace {

void launch(const at::Tensor& out, at::TensorList parts, bool accumulate) {
  TORCH_CHECK(parts.size() <= cuda::kMostRows, "zero::ordered_sum: more than ", cuda::kMostRows, " rows");
  const c10::cuda::CUDAGuard guard(out.device());
  cuda::Rows rows{};
  for (const at::Tensor& part : parts) rows.data[rows.count++] = part.const_data_ptr();
  C10_CUDA_CHECK(cuda::ordered_sum(out.mutable_data_ptr<float>(), rows,
                                   parts[0].scalar_type() == at::kBFloat16, out.numel(), accumulate,
                                   c10::cuda::getCurrentCUDAStream()));
}

void sum_on_cuda(at::TensorList parts, at::Tensor out) { launch(out, parts, false); }
void add_sum_on_cuda(at::Tensor sum, at::TensorList parts) { launch(sum, parts, true); }

}  // namespace
}  // namespace zero::detail

extern "C" void zero_cuda_mesh_kernels_1() {
  static torch::Library library(torch::Library::IMPL, "zero", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library.impl("ordered_sum", TORCH_FN(zero::detail::sum_on_cuda));
  library.impl("add_ordered_sum", TORCH_FN(zero::detail::add_sum_on_cuda));
}
