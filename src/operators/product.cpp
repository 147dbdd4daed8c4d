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

bool is_matrix(const at::Tensor& x) { return x.is_cpu() && x.dim() == 2 && x.numel() > 0; }

bool has_lines(const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1; }

bool is_odd(int64_t row_numel, int64_t numel) {
  return numel >= kFewestElements && row_numel * 2 % kLineBytes != 0;
}

bool has_odd_rows(const at::Tensor& matrix) {
  return matrix.stride(1) == 1 && is_odd(matrix.stride(0), matrix.numel());
}

bool are_factors(const at::Tensor& left, const at::Tensor& right) {
  return is_matrix(left) && is_matrix(right) && left.scalar_type() == right.scalar_type() &&
         left.size(1) == right.size(0);
}

/// Calls f with the kernels for a dtype, bf16 by its bits, where there are any.
template <class F>
void with_kernels(at::ScalarType dtype, F f) {
  const auto call = [&](const auto* kernels) {
    if (kernels != nullptr) f(*kernels);
  };
  if (dtype == at::kBFloat16) call(product::best_bf16_kernels());
  if (dtype == at::kFloat) call(product::best_fp32_kernels());
}

bool may_be_tiled(const at::Tensor& left, const at::Tensor& right) {
  if (!are_factors(left, right) || !has_lines(left) || !has_lines(right)) return false;
  const int64_t rows = left.size(0), depth = left.size(1), columns = right.size(1);
  bool is_worth_it = false;
  with_kernels(left.scalar_type(), [&](const auto& kernels) {
    is_worth_it = std::min({rows, depth, columns}) >= kernels.fewest_rows &&
                  rows * depth * columns >= kernels.fewest_multiplications;
  });
  return is_worth_it;
}

template <class T>
T* data_of(const at::Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

/// A matrix [rows, k] whose rows or columns are contiguous.
template <class T>
product::SideOf<T> side_of(const at::Tensor& x) {
  const bool along_k = x.stride(1) == 1;
  return {data_of<T>(x), x.stride(along_k ? 0 : 1), along_k};
}

/// out [pairs, rows, columns] of the pairs of left and right.
template <class T>
void multiply_with(const product::KernelsOf<T>& kernels, const at::Tensor& out, const at::Tensor& left,
                   const at::Tensor& right, const at::Tensor& bias) {
  const product::ProductOf<T> first{.rows = out.size(1),
                                    .columns = out.size(2),
                                    .depth = left.size(2),
                                    .left = side_of<T>(left.select(0, 0)),
                                    .right = side_of<T>(right.select(0, 0).t()),
                                    .out = data_of<T>(out),
                                    .out_stride = out.stride(1),
                                    .bias = bias.defined() ? data_of<T>(bias) : nullptr};
  const auto pair_at = [&, of_left = left.stride(0), of_right = right.stride(0),
                        of_out = out.stride(0)](int64_t pair) {
    product::ProductOf<T> product = first;
    product.left.data += pair * of_left;
    product.right.data += pair * of_right;
    product.out += pair * of_out;
    return product;
  };
  const at::TensorOptions bytes = out.options().dtype(at::kByte);
  const int64_t parts = kernels.parts_of(first);
  parallel_over(at::empty({parts * out.size(0)}, bytes), /*grain=*/1, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = at::empty({kernels.scratch_bytes(first)}, bytes);
    while (begin < end) {
      const int64_t part = begin % parts, here = std::min(parts - part, end - begin);
      kernels.multiply(pair_at(begin / parts), part, part + here, static_cast<char*>(scratch.data_ptr()));
      begin += here;
    }
  });
}

void multiply_tiles(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                    const at::Tensor& bias) {
  with_kernels(out.scalar_type(),
               [&](const auto& kernels) { multiply_with(kernels, out, left, right, bias); });
}

void multiply_pair(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                   const at::Tensor& bias) {
  multiply_tiles(out.unsqueeze(0), left.unsqueeze(0), right.unsqueeze(0), bias);
}

bool are_batches(const at::Tensor& left, const at::Tensor& right) {
  return left.dim() == 3 && right.dim() == 3 && left.size(0) == right.size(0) && left.numel() > 0 &&
         right.numel() > 0;
}

bool fits(const at::Tensor& bias, const at::Tensor& right) {
  return bias.is_cpu() && bias.scalar_type() == right.scalar_type() && bias.dim() == 1 &&
         bias.size(0) == right.size(1) && bias.is_contiguous();
}

}  // namespace

at::Tensor empty_aligned_rows(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t line = kLineBytes / static_cast<int64_t>(options.dtype().itemsize());
  return at::empty({rows, (columns + line - 1) / line * line}, options).narrow(1, 0, columns);
}

bool product_into(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  const bool fits = may_be_tiled(left, right) && out.is_cpu() && out.scalar_type() == left.scalar_type() &&
                    out.dim() == 2 && out.size(0) == left.size(0) && out.size(1) == right.size(1) &&
                    out.stride(1) == 1 && out.stride(0) >= out.size(1);
  if (fits) multiply_pair(out, left, right, /*bias=*/{});
  return fits;
}

std::optional<at::Tensor> product_of_tiles(const at::Tensor& left, const at::Tensor& right,
                                           const at::Tensor& bias) {
  if (!may_be_tiled(left, right) || (bias.defined() && !fits(bias, right))) return std::nullopt;
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  multiply_pair(out, left, right, bias);
  return out;
}

std::optional<at::Tensor> products_of_pairs(const at::Tensor& left, const at::Tensor& right) {
  if (!are_batches(left, right) || !may_be_tiled(left.select(0, 0), right.select(0, 0))) return std::nullopt;
  bool in_batches = false;
  with_kernels(left.scalar_type(), [&](const auto& kernels) { in_batches = kernels.in_batches; });
  if (!in_batches) return std::nullopt;
  at::Tensor out = at::empty({left.size(0), left.size(1), right.size(2)}, left.options());
  multiply_tiles(out, left, right, /*bias=*/{});
  return out;
}

std::optional<at::Tensor> product_of_odd_rows(const at::Tensor& left, const at::Tensor& right) {
  if (!are_factors(left, right) || left.scalar_type() != at::kBFloat16) return std::nullopt;
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
