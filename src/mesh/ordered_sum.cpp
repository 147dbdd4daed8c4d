#include "mesh/ordered_sum.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "base/cuda_plugin.h"
#include "base/plugin.h"
#include "compute/parallel.h"
#include "mesh/row_sums.h"

namespace zero::detail {
namespace {

// Elements summed at a time: all ranks' pieces of it stay in the first-level cache.
constexpr int64_t kSumBlock = 1024;

template <typename Sum, typename In>
void add_block(Sum* sum, const In* in, int64_t count) {
  if (count == kSumBlock) {  // a constant trip count, so that every compiler vectorises it
    for (int64_t i = 0; i < kSumBlock; ++i) sum[i] += static_cast<Sum>(in[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) sum[i] += static_cast<Sum>(in[i]);
}

using Rows = std::vector<const void*>;

template <typename In>
std::vector<const In*> rows_of(const Rows& rows) {
  std::vector<const In*> typed;
  typed.reserve(rows.size());
  for (const void* row : rows) typed.push_back(static_cast<const In*>(row));
  return typed;
}

template <typename Sum, typename In>
void sum_range(Sum* out, const std::vector<const In*>& parts, bool accumulate, int64_t begin, int64_t end) {
  alignas(64) Sum sum[kSumBlock];
  for (int64_t at = begin; at < end; at += kSumBlock) {
    int64_t count = std::min(kSumBlock, end - at);
    for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<Sum>(parts[0][at + i]);
    for (size_t rank = 1; rank < parts.size(); ++rank) add_block(sum, parts[rank] + at, count);
    if (accumulate) {
      for (int64_t i = 0; i < count; ++i) out[at + i] += sum[i];
    } else {
      std::copy(sum, sum + count, out + at);
    }
  }
}

template <typename Sum, typename In>
void sum_on_cpu(const at::Tensor& out, const Rows& rows, bool accumulate) {
  const auto parts = rows_of<In>(rows);
  Sum* to = out.mutable_data_ptr<Sum>();
  parallel_over(out, 64 * kSumBlock,
                [&](int64_t begin, int64_t end) { sum_range(to, parts, accumulate, begin, end); });
}

// The two that training moves have loops of their own.
template <class In>
void add_rows_on_cpu(const at::Tensor& out, const Rows& rows, bool accumulate) {
  const auto parts = rows_of<In>(rows);
  float* to = out.mutable_data_ptr<float>();
  parallel_over(out, 64 * kSumBlock,
                [&](int64_t begin, int64_t end) { add_rows(to, parts, begin, end, accumulate); });
}

template <typename Sum>
void sum_on_cpu(const at::Tensor& out, const Rows& rows, at::ScalarType dtype, bool accumulate) {
  switch (dtype) {
    case at::kFloat:
      return sum_on_cpu<Sum, float>(out, rows, accumulate);
    case at::kDouble:
      return sum_on_cpu<Sum, double>(out, rows, accumulate);
    case at::kBFloat16:
      return sum_on_cpu<Sum, c10::BFloat16>(out, rows, accumulate);
    default:
      return sum_on_cpu<Sum, c10::Half>(out, rows, accumulate);
  }
}

void sum_on_cpu(const at::Tensor& out, const Rows& rows, at::ScalarType dtype, bool accumulate) {
  if (out.scalar_type() != at::kFloat) return sum_on_cpu<double>(out, rows, dtype, accumulate);
  if (dtype == at::kFloat) return add_rows_on_cpu<float>(out, rows, accumulate);
  if (dtype == at::kBFloat16) return add_rows_on_cpu<uint16_t>(out, rows, accumulate);
  sum_on_cpu<float>(out, rows, dtype, accumulate);
}

Rows data_of(at::TensorList tensors) {
  Rows rows;
  rows.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.const_data_ptr());
  return rows;
}

}  // namespace

namespace {

void sum_on_cpu(at::TensorList parts, at::Tensor out) {
  sum_on_cpu(out, data_of(parts), parts[0].scalar_type(), false);
}
void add_sum_on_cpu(at::Tensor sum, at::TensorList parts) {
  sum_on_cpu(sum, data_of(parts), parts[0].scalar_type(), true);
}

// For devices that bring kernels for them (CUDA's: src/mesh/cuda) or compute with the CPU's. Defined when
// they are first needed, for as long as the process lives: the dispatcher has no other scope.
struct SumOperators {
  SumOperators() : library(torch::Library::FRAGMENT, "zero", std::nullopt, __FILE__, __LINE__) {
    using Replace = void(at::TensorList, at::Tensor);
    using Add = void(at::Tensor, at::TensorList);
    library.def("ordered_sum(Tensor[] parts, *, Tensor(a!) out) -> ()");
    library.def("add_ordered_sum(Tensor(a!) sum, Tensor[] parts) -> ()");
    library.impl("ordered_sum", c10::DispatchKey::CPU, static_cast<Replace*>(sum_on_cpu));
    library.impl("add_ordered_sum", c10::DispatchKey::CPU, add_sum_on_cpu);
    c10::Dispatcher& all = c10::Dispatcher::singleton();
    replace = all.findSchemaOrThrow("zero::ordered_sum", "").typed<Replace>();
    add = all.findSchemaOrThrow("zero::add_ordered_sum", "").typed<Add>();
  }

  torch::Library library;
  std::optional<c10::TypedOperatorHandle<void(at::TensorList, at::Tensor)>> replace;
  std::optional<c10::TypedOperatorHandle<void(at::Tensor, at::TensorList)>> add;
};

const SumOperators& operators() {
  static const SumOperators known;
  return known;
}

bool load_cuda_kernels() {
  static const PluginFunction loaded = load_plugin(kCudaPlugin, kCudaMeshKernels, PluginScope::Shared);
  if (!loaded.function) return false;
  static const bool is_registered = (reinterpret_cast<CudaRegister*>(loaded.function)(), true);
  return is_registered;
}

// What training moves, in numbers that fit a launch; LibTorch's operators do the rest.
bool has_kernel(const at::Tensor& out, const std::vector<at::Tensor>& parts) {
  constexpr size_t kMostRows = 256;
  const at::ScalarType type = parts[0].scalar_type();
  if (out.scalar_type() != at::kFloat || (type != at::kFloat && type != at::kBFloat16)) return false;
  if (parts.size() > kMostRows) return false;
  operators();
  if (out.is_cuda()) return load_cuda_kernels();
  return c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(
      c10::computeDispatchKey(std::nullopt, std::nullopt, out.device()));
}

}  // namespace

void define_sum_operators() { operators(); }

void ordered_sum(at::Tensor out, const std::vector<at::Tensor>& parts, bool accumulate) {
  if (out.numel() == 0) return;
  if (c10::isReducedFloatingType(out.scalar_type())) {
    at::NoGradGuard no_grad;
    const at::Tensor sum = at::empty(out.sizes(), out.options().dtype(at::kFloat));
    ordered_sum(sum, parts, false);
    if (accumulate) sum.add_(out);
    out.copy_(sum);
    return;
  }
  if (out.is_cpu()) return sum_on_cpu(out, data_of(parts), parts[0].scalar_type(), accumulate);
  at::NoGradGuard no_grad;
  if (has_kernel(out, parts))
    return accumulate ? operators().add->call(out, parts) : operators().replace->call(parts, out);
  at::Tensor sum = accumulate ? at::empty_like(out) : out;
  sum.copy_(parts[0]);
  for (size_t rank = 1; rank < parts.size(); ++rank) sum.add_(parts[rank]);
  if (accumulate) out.add_(sum);
}

void ordered_sums(const std::vector<ReducePart>& outs, const Rows& rows, at::ScalarType dtype, int rank) {
  size_t offset_bytes = 0;
  for (const ReducePart& part : outs) {
    const int64_t numel = part.out.numel();
    Rows pieces = rows;
    for (const void*& piece : pieces) piece = static_cast<const char*>(piece) + offset_bytes;
    if (part.own.defined()) pieces[rank] = part.own.const_data_ptr();
    if (numel > 0) sum_on_cpu(part.out, pieces, dtype, part.accumulate);
    offset_bytes += numel * c10::elementSize(dtype);
  }
}

void ordered_sums(const std::vector<ReducePart>& outs, const std::vector<at::Tensor>& rows, int rank) {
  if (rows[0].is_cpu()) return ordered_sums(outs, data_of(rows), rows[0].scalar_type(), rank);
  int64_t column = 0;
  for (const ReducePart& part : outs) {
    std::vector<at::Tensor> pieces;
    pieces.reserve(rows.size());
    for (const at::Tensor& row : rows) pieces.push_back(row.narrow(0, column, part.out.numel()));
    if (part.own.defined()) pieces[rank] = part.own;
    ordered_sum(part.out, pieces, part.accumulate);
    column += part.out.numel();
  }
}

void ordered_max(at::Tensor out, const std::vector<at::Tensor>& parts) {
  at::NoGradGuard no_grad;
  if (parts.size() == 1) {
    out.copy_(parts[0]);
    return;
  }
  at::maximum_out(out, parts[0], parts[1]);
  for (size_t rank = 2; rank < parts.size(); ++rank) at::maximum_out(out, out, parts[rank]);
}

std::vector<at::Tensor> equal_parts(const at::Tensor& tensor, int parts) {
  at::NoGradGuard no_grad;
  int64_t each = tensor.numel() / parts;
  std::vector<at::Tensor> pieces;
  pieces.reserve(parts);
  for (int part = 0; part < parts; ++part) pieces.push_back(tensor.narrow(0, part * each, each));
  return pieces;
}

}  // namespace zero::detail
