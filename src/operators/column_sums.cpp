#include "operators/column_sums.h"

#include <ATen/ops/empty.h>

#include "compute/parallel.h"
#include "operators/column_sums_loops.h"

namespace zero::detail {
namespace {

constexpr int64_t kElementsAPiece = 1 << 16;  // elements of x

}  // namespace

bool has_fast_column_sums(const at::Tensor& x) {
  if (!x.is_cpu() || x.scalar_type() != at::kBFloat16 || x.dim() < 2 || x.numel() == 0) return false;
  return x.is_contiguous() || (x.dim() == 2 && x.stride(1) == 1);
}

at::Tensor fast_column_sums(const at::Tensor& x) {
  at::Tensor sums = at::empty({x.size(-1)}, x.options());
  const auto* from = static_cast<const Bf16*>(x.const_data_ptr());
  auto* to = static_cast<Bf16*>(sums.mutable_data_ptr());
  // Of a dim of one element the stride says nothing.
  const int64_t rows = x.numel() / x.size(-1), stride = x.is_contiguous() ? x.size(-1) : x.stride(0);
  parallel_over(sums, kElementsAPiece / rows + 1, [&](int64_t begin, int64_t end) {
    sum_columns(from + begin, rows, stride, to + begin, end - begin);
  });
  return sums;
}

}  // namespace zero::detail
