// The fused operators on CUDA tensors: pointers out of tensors, a launch on the current stream.

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <optional>

#include "optim/cuda/launch.h"
#include "optim/fused_operators.h"
#include "optim/rule_buffers.h"

namespace zero::fused_operators {
namespace {

void update_on_cuda(int64_t rule, at::Tensor master, const at::Tensor& gradient,
                    std::optional<at::Tensor> parameter, at::TensorList states, const at::Tensor& row) {
  const c10::cuda::CUDAGuard guard(master.device());
  const kernels::Buffers buffers = rule_buffers(master, gradient, parameter.value_or(at::Tensor()), states);
  C10_CUDA_CHECK(kernels::cuda::update(rule, buffers, row.const_data_ptr(), master.numel(),
                                       c10::cuda::getCurrentCUDAStream()));
}

at::Tensor direction_on_cuda(int64_t rule, const at::Tensor& master, const at::Tensor& gradient,
                             const std::optional<at::Tensor>& parameter, at::TensorList states,
                             const at::Tensor& row) {
  const c10::cuda::CUDAGuard guard(master.device());
  const kernels::Buffers buffers = rule_buffers(master, gradient, parameter.value_or(at::Tensor()), states);
  const at::Tensor sums =
      at::empty({rule_blocks_of(master.numel()), sums_of_rule(rule)}, master.options().dtype(at::kDouble));
  C10_CUDA_CHECK(kernels::cuda::direction(rule, buffers, row.const_data_ptr(), master.numel(),
                                          kRuleBlockNumel, sums.mutable_data_ptr<double>(),
                                          c10::cuda::getCurrentCUDAStream()));
  return sums;
}

at::Tensor sums_of_squares_on_cuda(const at::Tensor& values) {
  const c10::cuda::CUDAGuard guard(values.device());
  const at::Tensor sums = at::empty({sum_blocks_of(values.numel())}, values.options().dtype(at::kDouble));
  C10_CUDA_CHECK(kernels::cuda::sums_of_squares(
      values.const_data_ptr(), known_element_of(values.scalar_type()).value(), values.numel(), kSumBlockNumel,
      sums.mutable_data_ptr<double>(), c10::cuda::getCurrentCUDAStream()));
  return sums;
}

at::Tensor ordered_totals_on_cuda(const at::Tensor& partials, const at::Tensor& ends) {
  const c10::cuda::CUDAGuard guard(partials.device());
  const at::Tensor totals = at::empty({ends.numel(), partials.size(1)}, partials.options());
  C10_CUDA_CHECK(kernels::cuda::ordered_totals(
      partials.const_data_ptr<double>(), partials.size(1), ends.const_data_ptr<int64_t>(), ends.numel(),
      totals.mutable_data_ptr<double>(), c10::cuda::getCurrentCUDAStream()));
  return totals;
}

at::Tensor exact_totals_on_cuda(const at::Tensor& partials, const at::Tensor& ends) {
  const c10::cuda::CUDAGuard guard(partials.device());
  const at::Tensor digits =
      at::empty({ends.numel(), partials.size(1) * kernels::kDigits}, partials.options());
  C10_CUDA_CHECK(kernels::cuda::exact_totals(
      partials.const_data_ptr<double>(), partials.size(1), ends.const_data_ptr<int64_t>(), ends.numel(),
      digits.mutable_data_ptr<double>(), c10::cuda::getCurrentCUDAStream()));
  return digits;
}

kernels::cuda::RowsOnDevice rows_of(const at::Tensor& table, const at::Tensor& parameters) {
  return {table.mutable_data_ptr(), parameters.const_data_ptr<int64_t>(), table.size(0)};
}

void decide_on_cuda(int64_t rule, at::Tensor table, const at::Tensor& parameters,
                    const at::Tensor& squared_norm, const at::Tensor& used, double gradient_scale,
                    double max_norm) {
  const c10::cuda::CUDAGuard guard(table.device());
  C10_CUDA_CHECK(kernels::cuda::decide(rule, rows_of(table, parameters),
                                       squared_norm.const_data_ptr<double>(), used.const_data_ptr<double>(),
                                       gradient_scale, max_norm, c10::cuda::getCurrentCUDAStream()));
}

void apply_sums_on_cuda(int64_t rule, at::Tensor table, const at::Tensor& parameters,
                        const at::Tensor& sums) {
  const c10::cuda::CUDAGuard guard(table.device());
  C10_CUDA_CHECK(kernels::cuda::apply_sums(rule, rows_of(table, parameters), sums.const_data_ptr<double>(),
                                           c10::cuda::getCurrentCUDAStream()));
}

}  // namespace
}  // namespace zero::fused_operators

extern "C" void zero_cuda_optimizer_kernels_1() {
  namespace fused = zero::fused_operators;
  static torch::Library library(torch::Library::IMPL, "zero", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  library.impl("rule_update", TORCH_FN(fused::update_on_cuda));
  library.impl("rule_direction", TORCH_FN(fused::direction_on_cuda));
  library.impl("sums_of_squares", TORCH_FN(fused::sums_of_squares_on_cuda));
  library.impl("ordered_totals", TORCH_FN(fused::ordered_totals_on_cuda));
  library.impl("exact_totals", TORCH_FN(fused::exact_totals_on_cuda));
  library.impl("rule_decide", TORCH_FN(fused::decide_on_cuda));
  library.impl("rule_apply_sums", TORCH_FN(fused::apply_sums_on_cuda));
}
