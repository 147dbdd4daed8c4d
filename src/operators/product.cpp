#include "operators/product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "compute/parallel.h"
#include "operators/product/product.h"

namespace zero::detail {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kFewestElements = 1 << 20;  // of a matrix whose copy pays
// Below these a product is mostly its preparation.
constexpr int64_t kFewestRows = 16;
constexpr int64_t kFewestMultiplications = 1 << 21;

bool is_matrix(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == at::kBFloat16 && x.dim() == 2 && x.numel() > 0;
}

uint16_t* bits_of(const at::Tensor& x) { return static_cast<uint16_t*>(x.data_ptr()); }

bool has_lines(const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1; }

/// A matrix [rows, k] whose rows or columns are contiguous.
product::Side side_of(const at::Tensor& x) {
  const bool along_k = x.stride(1) == 1;
  return {bits_of(x), x.stride(along_k ? 0 : 1), along_k};
}

bool is_odd(int64_t row_numel, int64_t numel) {
  return numel >= kFewestElements && row_numel * 2 % kLineBytes != 0;
}

bool has_odd_rows(const at::Tensor& matrix) {
  return matrix.stride(1) == 1 && is_odd(matrix.stride(0), matrix.numel());
}

bool are_factors(const at::Tensor& left, const at::Tensor& right) {
  return is_matrix(left) && is_matrix(right) && left.size(1) == right.size(0);
}

bool may_be_tiled(const at::Tensor& left, const at::Tensor& right) {
  if (!product::runs_here() || !are_factors(left, right) || !has_lines(left) || !has_lines(right))
    return false;
  const int64_t rows = left.size(0), depth = left.size(1), columns = right.size(1);
  return std::min({rows, depth, columns}) >= kFewestRows && rows * depth * columns >= kFewestMultiplications;
}

void multiply_tiles(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                    const at::Tensor& bias) {
  const product::Product product{.rows = out.size(0),
                                 .columns = out.size(1),
                                 .depth = left.size(1),
                                 .left = side_of(left),
                                 .right = side_of(right.t()),
                                 .out = bits_of(out),
                                 .out_stride = out.stride(0),
                                 .bias = bias.defined() ? bits_of(bias) : nullptr};
  const at::TensorOptions bytes = out.options().dtype(at::kByte);
  parallel_over(at::empty({product::parts_of(product)}, bytes), /*grain=*/1, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = at::empty({product::scratch_bytes(product)}, bytes);
    product::multiply(product, begin, end, static_cast<char*>(scratch.data_ptr()));
  });
}

bool fits(const at::Tensor& bias, int64_t columns) {
  return bias.is_cpu() && bias.scalar_type() == at::kBFloat16 && bias.dim() == 1 && bias.size(0) == columns &&
         bias.is_contiguous();
}

}  // namespace

at::Tensor empty_aligned_rows(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t line = kLineBytes / static_cast<int64_t>(options.dtype().itemsize());
  return at::empty({rows, (columns + line - 1) / line * line}, options).narrow(1, 0, columns);
}

bool product_into(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  const bool fits = may_be_tiled(left, right) && out.is_cpu() && out.scalar_type() == at::kBFloat16 &&
                    out.dim() == 2 && out.size(0) == left.size(0) && out.size(1) == right.size(1) &&
                    out.stride(1) == 1 && out.stride(0) >= out.size(1);
  if (fits) multiply_tiles(out, left, right, /*bias=*/{});
  return fits;
}

std::optional<at::Tensor> product_of_tiles(const at::Tensor& left, const at::Tensor& right,
                                           const at::Tensor& bias) {
  if (!may_be_tiled(left, right) || (bias.defined() && !fits(bias, right.size(1)))) return std::nullopt;
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  multiply_tiles(out, left, right, bias);
  return out;
}

std::optional<at::Tensor> product_of_odd_rows(const at::Tensor& left, const at::Tensor& right) {
  if (!are_factors(left, right)) return std::nullopt;
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

std::optional<at::Tensor> fast_product(const at::Tensor& left, const at::Tensor& right,
                                       const at::Tensor& bias) {
  if (std::optional<at::Tensor> result = product_of_tiles(left, right, bias)) return result;
  return bias.defined() ? std::nullopt : product_of_odd_rows(left, right);
}

}  // namespace zero::detail
