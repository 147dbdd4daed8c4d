#pragma once
// Splits work over torch's own intra-operator threads.

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

namespace zero {

/// Calls work(begin, end) on disjoint pieces that cover [0, flat.numel()), at least `grain` elements each
/// where there are several. `flat` is a non-empty or empty contiguous 1-D CPU tensor; it is only the measure,
/// `work` may touch any memory.
///
/// at::parallel_for would do, but it is a header template that is serial unless the caller is compiled with
/// torch's OpenMP; an iterator over the tensor runs inside LibTorch and follows at::set_num_threads in every
/// build.
void parallel_over(const at::Tensor& flat, int64_t grain, c10::function_ref<void(int64_t, int64_t)> work);

}  // namespace zero
