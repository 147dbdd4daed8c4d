#include "operators/product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

namespace zero::detail {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kFewestElements = 1 << 20;  // of a matrix whose copy pays

bool is_odd(int64_t row_numel, int64_t numel) {
  return numel >= kFewestElements && row_numel * 2 % kLineBytes != 0;
}

bool has_odd_rows(const at::Tensor& matrix) {
  return matrix.stride(1) == 1 && is_odd(matrix.stride(0), matrix.numel());
}

}  // namespace

at::Tensor empty_aligned_rows(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t line = kLineBytes / static_cast<int64_t>(options.dtype().itemsize());
  return at::empty({rows, (columns + line - 1) / line * line}, options).narrow(1, 0, columns);
}

std::optional<at::Tensor> product_of_odd_rows(const at::Tensor& left, const at::Tensor& right) {
  const bool fits = left.is_cpu() && right.is_cpu() && left.scalar_type() == at::kBFloat16 &&
                    right.scalar_type() == at::kBFloat16 && left.dim() == 2 && right.dim() == 2 &&
                    left.size(1) == right.size(0);
  if (!fits) return std::nullopt;
  const int64_t rows = left.size(0), columns = right.size(1);
  if (is_odd(columns, rows * columns)) {
    at::Tensor out = empty_aligned_rows(rows, columns, left.options());
    at::mm_out(out, left, right);
    return out.contiguous();
  }
  if (has_odd_rows(left)) {
    const at::Tensor copy = empty_aligned_rows(rows, left.size(1), left.options());
    copy.copy_(left);
    return at::mm(copy, right);
  }
  return std::nullopt;
}

}  // namespace zero::detail
