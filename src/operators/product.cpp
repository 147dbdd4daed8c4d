#include "operators/product.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "base/processor.h"
#include "compute/parallel.h"
#include "operators/product/product.h"

namespace zero::detail {
namespace {

// Of what is smaller, in any of the three dims or altogether, LibTorch's product is faster.
constexpr int64_t kFewestTiledRows = 16, kFewestTiled = 1 << 21, kFewestWidened = 1 << 15;
// Of one part of a widened product, in rows and columns, and in k.
constexpr int64_t kWidenedSide = 1024, kWidenedDepth = 4096;

const product::Kernels* tile_kernels() {
#if defined(__x86_64__)
  return runs_amx() ? &product::kAmx : nullptr;
#else
  return nullptr;
#endif
}

bool is_half(const at::Tensor& x, int64_t dims) {
  return x.layout() == at::kStrided && x.is_cpu() && x.dim() == dims && x.numel() > 0 &&
         x.scalar_type() == at::kBFloat16;
}

bool are_factors(const at::Tensor& left, const at::Tensor& right) {
  return is_half(left, 2) && is_half(right, 2) && left.size(1) == right.size(0);
}

bool fits(const at::Tensor& bias, const at::Tensor& right) {
  return !bias.defined() || (is_half(bias, 1) && bias.size(0) == right.size(1) && bias.is_contiguous());
}

bool has_lines(const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1; }

int64_t multiplications(const at::Tensor& left, const at::Tensor& right) {
  return left.size(0) * left.size(1) * right.size(1);
}

uint16_t* data_of(const at::Tensor& x) { return static_cast<uint16_t*>(x.data_ptr()); }

/// A matrix [rows, k] whose rows or columns are contiguous.
product::Bf16Side side_of(const at::Tensor& x) {
  const bool along_k = x.stride(1) == 1;
  return {data_of(x), x.stride(along_k ? 0 : 1), along_k};
}

/// By the faster way. False, and nothing done, where LibTorch is as fast.
bool multiply(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
              const at::Tensor& bias) {
  if (has_tiled_products()) return multiply_by_tiles(out, left, right, bias);
  if (!has_widened_products() || multiplications(left, right) < kFewestWidened) return false;
  multiply_widened(out, left, right, bias);
  return true;
}

}  // namespace

bool has_tiled_products() { return tile_kernels() != nullptr; }

bool has_widened_products() {
#if defined(__x86_64__)
  return !multiplies_bf16();
#else
  return false;
#endif
}

bool multiply_by_tiles(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                       const at::Tensor& bias) {
  const product::Kernels* const kernels = tile_kernels();
  if (kernels == nullptr || !has_lines(left) || !has_lines(right)) return false;
  const int64_t rows = left.size(0), depth = left.size(1), columns = right.size(1);
  if (std::min({rows, depth, columns}) < kFewestTiledRows || multiplications(left, right) < kFewestTiled)
    return false;
  const product::Bf16Product product{.rows = rows,
                                     .columns = columns,
                                     .depth = depth,
                                     .left = side_of(left),
                                     .right = side_of(right.t()),
                                     .out = data_of(out),
                                     .out_stride = out.stride(0),
                                     .bias = bias.defined() ? data_of(bias) : nullptr};
  const at::TensorOptions bytes = out.options().dtype(at::kByte);
  parallel_over(at::empty({kernels->parts_of(product)}, bytes), /*grain=*/1, [&](int64_t begin, int64_t end) {
    const at::Tensor scratch = at::empty({kernels->scratch_bytes(product)}, bytes);
    kernels->multiply(product, begin, end, static_cast<char*>(scratch.data_ptr()));
  });
  return true;
}

void multiply_widened(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                      const at::Tensor& bias) {
  const int64_t depth = left.size(1);
  for (int64_t row = 0; row < out.size(0); row += kWidenedSide)
    for (int64_t column = 0; column < out.size(1); column += kWidenedSide) {
      const int64_t rows = std::min(kWidenedSide, out.size(0) - row),
                    columns = std::min(kWidenedSide, out.size(1) - column);
      at::Tensor sums;
      for (int64_t k = 0; k < depth; k += kWidenedDepth) {
        const int64_t count = std::min(kWidenedDepth, depth - k);
        const at::Tensor a = left.narrow(0, row, rows).narrow(1, k, count).to(at::kFloat),
                         b = right.narrow(0, k, count).narrow(1, column, columns).to(at::kFloat);
        sums = sums.defined() ? sums.addmm_(a, b) : at::mm(a, b);
      }
      if (bias.defined()) sums.add_(bias.narrow(0, column, columns));
      out.narrow(0, row, rows).narrow(1, column, columns).copy_(sums);
    }
}

std::optional<at::Tensor> fast_product(const at::Tensor& left, const at::Tensor& right,
                                       const at::Tensor& bias) {
  if (!has_tiled_products() && !has_widened_products()) return std::nullopt;
  if (!are_factors(left, right) || !fits(bias, right)) return std::nullopt;
  at::Tensor out = at::empty({left.size(0), right.size(1)}, left.options());
  if (!multiply(out, left, right, bias)) return std::nullopt;
  return out;
}

bool product_into(const at::Tensor& out, const at::Tensor& left, const at::Tensor& right) {
  return are_factors(left, right) && is_half(out, 2) && out.size(0) == left.size(0) &&
         out.size(1) == right.size(1) && out.stride(1) == 1 && out.stride(0) >= out.size(1) &&
         multiply(out, left, right, /*bias=*/{});
}

std::optional<at::Tensor> fast_products_of_pairs(const at::Tensor& left, const at::Tensor& right) {
  const bool are_pairs =
      is_half(left, 3) && is_half(right, 3) && left.size(0) == right.size(0) && left.size(2) == right.size(1);
  if (!are_pairs || !has_widened_products()) return std::nullopt;
  if (left.size(0) * multiplications(left[0], right[0]) < kFewestWidened) return std::nullopt;
  at::Tensor out = at::empty({left.size(0), left.size(1), right.size(2)}, left.options());
  for (int64_t pair = 0; pair < left.size(0); ++pair)
    multiply_widened(out[pair], left[pair], right[pair], /*bias=*/{});
  return out;
}

}  // namespace zero::detail
