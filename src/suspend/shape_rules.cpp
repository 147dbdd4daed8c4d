// Shapes of operators that have kernels for values alone.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/result_type.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "suspend/shapes.h"

namespace zero::detail {
namespace {

using torch::jit::Stack;

at::Tensor contiguous_meta(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::detail::empty_meta(sizes, dtype);
}

/// Arguments by their place in the schema.
struct Arguments {
  const Stack& stack;
  at::Tensor tensor(size_t i) const { return stack[i].toTensor(); }
  int64_t number(size_t i) const { return stack[i].toInt(); }
  std::vector<int64_t> numbers(size_t i) const { return stack[i].toIntVector(); }
};

Stack index_select(const Arguments& in) {
  const at::Tensor self = in.tensor(0);
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) {
    const int64_t dim = in.number(1);
    sizes[static_cast<size_t>(dim < 0 ? dim + self.dim() : dim)] = in.tensor(2).numel();
  }
  return {contiguous_meta(sizes, self.scalar_type())};
}

Stack embedding(const Arguments& in) {
  std::vector<int64_t> sizes = in.tensor(1).sizes().vec();
  sizes.push_back(in.tensor(0).size(1));
  return {contiguous_meta(sizes, in.tensor(0).scalar_type())};
}

// Mean and rstd are in float where the input is of less.
at::ScalarType statistics_dtype(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

Stack native_layer_norm(const Arguments& in) {
  const at::Tensor x = in.tensor(0);
  const size_t kept = static_cast<size_t>(x.dim()) - in.numbers(1).size();
  std::vector<int64_t> statistics = x.sizes().vec();
  std::fill(statistics.begin() + static_cast<std::ptrdiff_t>(kept), statistics.end(), 1);
  const at::ScalarType dtype = statistics_dtype(x.scalar_type());
  return {contiguous_meta(x.sizes(), x.scalar_type()), contiguous_meta(statistics, dtype),
          contiguous_meta(statistics, dtype)};
}

// Channels last stay so.
at::Tensor like_suggested(const at::Tensor& x, at::IntArrayRef sizes) {
  return at::detail::empty_meta(sizes, x.scalar_type(), std::nullopt, std::nullopt, std::nullopt,
                                x.suggest_memory_format());
}

Stack native_group_norm(const Arguments& in) {
  const at::Tensor x = in.tensor(0);
  const std::vector<int64_t> statistics{in.number(3), in.number(6)};
  const at::ScalarType dtype = statistics_dtype(x.scalar_type());
  return {like_suggested(x, x.sizes()), contiguous_meta(statistics, dtype),
          contiguous_meta(statistics, dtype)};
}

Stack native_batch_norm(const Arguments& in) {
  const at::Tensor x = in.tensor(0);
  const std::vector<int64_t> statistics{in.stack[5].toBool() ? x.size(1) : 0};
  const at::ScalarType dtype = statistics_dtype(x.scalar_type());
  return {like_suggested(x, x.sizes()), contiguous_meta(statistics, dtype),
          contiguous_meta(statistics, dtype)};
}

// As elementwise operators lay their results out: those of three arguments have shape functions.
Stack where(const Arguments& in) {
  const auto number = [&](size_t i) { return in.tensor(i).to(at::kFloat); };
  const at::Tensor like = at::addcmul(number(0), number(1), number(2));
  const at::ScalarType dtype = at::result_type(in.tensor(1), in.tensor(2));
  return {at::detail::empty_strided_meta(like.sizes(), like.strides(), dtype)};
}

Stack convolution(const Arguments& in) {
  const at::Tensor x = in.tensor(0), weight = in.tensor(1);
  const std::vector<int64_t> stride = in.numbers(3), padding = in.numbers(4), dilation = in.numbers(5);
  const bool transposed = in.stack[6].toBool();
  const std::vector<int64_t> output_padding = in.numbers(7);
  const auto at = [](const std::vector<int64_t>& all, size_t i) { return all.size() == 1 ? all[0] : all[i]; };
  std::vector<int64_t> sizes{x.size(0), transposed ? weight.size(1) * in.number(8) : weight.size(0)};
  for (int64_t dim = 2; dim < x.dim(); ++dim) {
    const auto i = static_cast<size_t>(dim - 2);
    const int64_t reach = at(dilation, i) * (weight.size(dim) - 1);
    sizes.push_back(transposed ? (x.size(dim) - 1) * at(stride, i) - 2 * at(padding, i) + reach +
                                     at(output_padding, i) + 1
                               : (x.size(dim) + 2 * at(padding, i) - reach - 1) / at(stride, i) + 1);
  }
  return {like_suggested(x, sizes)};
}

Stack flash_attention(const Arguments& in) {
  const at::Tensor q = in.tensor(0), v = in.tensor(2);
  const int64_t batch = q.size(0), heads = q.size(1), length = q.size(2);
  const at::Tensor out = contiguous_meta({batch, length, heads, v.size(3)}, q.scalar_type());
  const at::ScalarType sums = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor logsumexp = contiguous_meta({batch, length, heads}, sums);
  return {out.transpose(1, 2), logsumexp.transpose(1, 2)};
}

using ShapeRule = Stack (*)(const Arguments&);

ShapeRule rule_for(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string_view, ShapeRule> kRules{
      {"aten::index_select", index_select},
      {"aten::embedding", embedding},
      {"aten::native_layer_norm", native_layer_norm},
      {"aten::native_group_norm", native_group_norm},
      {"aten::native_batch_norm", native_batch_norm},
      {"aten::where", where},
      {"aten::convolution", convolution},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_attention}};
  const auto found = kRules.find(op.schema().name());
  return found == kRules.end() ? nullptr : found->second;
}

double numel_in(const Stack& stack) {
  double numel = 0;
  for (const c10::IValue& value : stack)
    if (value.isTensor() && value.toTensor().defined())
      numel += static_cast<double>(value.toTensor().numel());
  return numel;
}

}  // namespace

bool shapes_by_rule(const c10::OperatorHandle& op, const Stack& arguments, Stack& results) {
  const ShapeRule rule = rule_for(op);
  if (rule == nullptr || arguments.empty() || !arguments[0].isTensor()) return false;
  results = rule({arguments});
  return true;
}

double cost_of(const c10::OperatorHandle& op, const Stack& arguments, const Stack& results) {
  const std::string& name = op.schema().name();
  const Arguments in{arguments};
  const double out = numel_in(results);
  const auto product = [&](size_t left) {
    return 2 * out * static_cast<double>(in.tensor(left).sizes().back());
  };
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::mv") return product(0);
  if (name == "aten::addmm" || name == "aten::baddbmm") return product(1);
  if (name == "aten::convolution") {
    const at::Tensor weight = in.tensor(1);
    return 2 * out * static_cast<double>(weight.numel() / weight.size(0));
  }
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu")
    return 4 * static_cast<double>(in.tensor(0).numel()) * static_cast<double>(in.tensor(1).size(2));
  return out;
}

}  // namespace zero::detail
