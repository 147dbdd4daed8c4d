#include "engine/fast_operators.h"

#include <cmath>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/dispatch.h"
#include "engine/target_gradients.h"
#include "operators/attention.h"
#include "operators/column_sums.h"
#include "operators/gelu.h"
#include "operators/log_softmax.h"
#include "operators/product.h"
#include "zero/fast_operators.h"

namespace zero::detail {
namespace {

using torch::jit::Stack;

/// Takes the arguments of an operator with `inputs` of them off the stack and leaves its results.
template <class... Results>
bool replace(Stack& stack, size_t inputs, Results... results) {
  torch::jit::drop(stack, inputs);
  torch::jit::push(stack, std::move(results)...);
  return true;
}

const at::Tensor& tensor_at(const Stack& stack, size_t argument, size_t inputs) {
  return torch::jit::peek(stack, argument, inputs).toTensor();
}

// gelu(Tensor self, *, str approximate)
bool gelu(Stack& stack) {
  const at::Tensor& x = tensor_at(stack, 0, 2);
  if (torch::jit::peek(stack, 1, 2).toStringRef() != "tanh" || !has_fast_gelu(x)) return false;
  return replace(stack, 2, fast_gelu(x));
}

// gelu_backward(Tensor grad_output, Tensor self, *, str approximate)
bool gelu_backward(Stack& stack) {
  const at::Tensor &gradient = tensor_at(stack, 0, 3), &x = tensor_at(stack, 1, 3);
  if (torch::jit::peek(stack, 2, 3).toStringRef() != "tanh" || !has_fast_gelu(x)) return false;
  if (gradient.scalar_type() != x.scalar_type() || gradient.sizes() != x.sizes() || !gradient.is_cpu())
    return false;
  return replace(stack, 3, fast_gelu_backward(gradient, x));
}

// mm(Tensor self, Tensor mat2)
bool mm(Stack& stack) {
  std::optional<at::Tensor> product = fast_product(tensor_at(stack, 0, 2), tensor_at(stack, 1, 2));
  return product && replace(stack, 2, std::move(*product));
}

// bmm(Tensor self, Tensor mat2)
bool bmm(Stack& stack) {
  std::optional<at::Tensor> products = products_of_pairs(tensor_at(stack, 0, 2), tensor_at(stack, 1, 2));
  return products && replace(stack, 2, std::move(*products));
}

// mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out)
bool mm_out(Stack& stack) {
  constexpr size_t kInputs = 3;
  const at::Tensor out = tensor_at(stack, 2, kInputs);
  return product_into(out, tensor_at(stack, 0, kInputs), tensor_at(stack, 1, kInputs)) &&
         replace(stack, kInputs, out);
}

// addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta, Scalar alpha)
bool addmm(Stack& stack) {
  constexpr size_t kInputs = 5;
  const auto is_one = [&](size_t i) { return torch::jit::peek(stack, i, kInputs).toScalar().equal(1); };
  if (!is_one(3) || !is_one(4)) return false;
  std::optional<at::Tensor> product =
      fast_product(tensor_at(stack, 1, kInputs), tensor_at(stack, 2, kInputs), tensor_at(stack, 0, kInputs));
  return product && replace(stack, kInputs, std::move(*product));
}

/// All dims but the last, in order.
bool are_all_but_last(const c10::IValue& dims, const at::Tensor& x) {
  if (!dims.isIntList() || x.dim() < 2) return false;
  std::vector<int64_t> wanted(static_cast<size_t>(x.dim() - 1));
  std::iota(wanted.begin(), wanted.end(), int64_t{0});
  return dims.toIntVector() == wanted;
}

// sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim, *, ScalarType? dtype)
bool sum(Stack& stack) {
  constexpr size_t kInputs = 4;
  const at::Tensor& x = tensor_at(stack, 0, kInputs);
  const c10::IValue& dtype = torch::jit::peek(stack, 3, kInputs);
  if (!are_all_but_last(torch::jit::peek(stack, 1, kInputs), x) || !has_fast_column_sums(x)) return false;
  if (!dtype.isNone() && dtype.toScalarType() != x.scalar_type()) return false;
  const at::Tensor sums = fast_column_sums(x);
  std::vector<int64_t> shape(torch::jit::peek(stack, 2, kInputs).toBool() ? static_cast<size_t>(x.dim()) : 1,
                             1);
  shape.back() = sums.size(0);
  return replace(stack, kInputs, sums.view(shape));
}

// Autograd passes an undefined tensor where the forward had none.
bool is_given(const c10::IValue& mask) { return mask.isTensor() && mask.toTensor().defined(); }

double scale_of(const c10::IValue& given, const at::Tensor& queries) {
  return given.isNone() ? 1 / std::sqrt(static_cast<double>(queries.size(3))) : given.toDouble();
}

// _scaled_dot_product_flash_attention_for_cpu(Tensor query, Tensor key, Tensor value, float dropout_p, bool
// is_causal, *, Tensor? attn_mask, float? scale) -> (Tensor output, Tensor logsumexp)
bool attention(Stack& stack) {
  constexpr size_t kInputs = 7;
  const auto argument = [&](size_t i) -> const c10::IValue& { return torch::jit::peek(stack, i, kInputs); };
  const at::Tensor &queries = argument(0).toTensor(), &keys = argument(1).toTensor(),
                   &values = argument(2).toTensor();
  if (argument(3).toDouble() != 0 || is_given(argument(5)) || !has_fast_attention(queries, keys, values))
    return false;
  auto [out, log_sums] =
      fast_attention(queries, keys, values, argument(4).toBool(), scale_of(argument(6), queries));
  return replace(stack, kInputs, out, log_sums);
}

// ..._backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, float
// dropout_p, bool is_causal, *, Tensor? attn_mask, float? scale) -> (Tensor, Tensor, Tensor)
bool attention_backward(Stack& stack) {
  constexpr size_t kInputs = 10;
  const auto argument = [&](size_t i) -> const c10::IValue& { return torch::jit::peek(stack, i, kInputs); };
  const at::Tensor &gradient = argument(0).toTensor(), &queries = argument(1).toTensor(),
                   &keys = argument(2).toTensor(), &values = argument(3).toTensor(),
                   &out = argument(4).toTensor();
  if (argument(6).toDouble() != 0 || is_given(argument(8)) || !has_fast_attention(queries, keys, values))
    return false;
  if (gradient.scalar_type() != queries.scalar_type() || gradient.sizes() != queries.sizes()) return false;
  auto [of_queries, of_keys, of_values] =
      fast_attention_backward(gradient, queries, keys, values, out, argument(5).toTensor(),
                              argument(7).toBool(), scale_of(argument(9), queries));
  return replace(stack, kInputs, of_queries, of_keys, of_values);
}

// _log_softmax(Tensor self, int dim, bool half_to_float)
bool log_softmax(Stack& stack) {
  const at::Tensor& x = tensor_at(stack, 0, 3);
  const int64_t dim = torch::jit::peek(stack, 1, 3).toInt();
  if (torch::jit::peek(stack, 2, 3).toBool() || !has_fast_log_softmax(x) || (dim != -1 && dim != x.dim() - 1))
    return false;
  return replace(stack, 3, fast_log_softmax(x));
}

using Operator = bool (*)(Stack&);

const std::unordered_map<c10::OperatorHandle, Operator>& operators() {
  static const auto* const table = [] {
    auto* result = new std::unordered_map<c10::OperatorHandle, Operator>();
    const auto add = [&](const char* name, const char* overload, Operator run) {
      result->emplace(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), run);
    };
    add("aten::gelu", "", &gelu);
    add("aten::gelu_backward", "", &gelu_backward);
    add("aten::mm", "", &mm);
    add("aten::bmm", "", &bmm);
    add("aten::mm", "out", &mm_out);
    add("aten::addmm", "", &addmm);
    add("aten::sum", "dim_IntList", &sum);
    add("aten::_scaled_dot_product_flash_attention_for_cpu", "", &attention);
    add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "", &attention_backward);
    add("aten::_log_softmax", "", &log_softmax);
    add("aten::nll_loss_backward", "", &keep_target_gradient);
    add("aten::_log_softmax_backward_data", "", &take_target_gradient);
    return result;
  }();
  return *table;
}

}  // namespace

bool run_fast(const c10::OperatorHandle& op, Stack& stack) {
  const auto found = operators().find(op);
  return found != operators().end() && found->second(stack);
}

}  // namespace zero::detail

namespace zero {

struct FastOperators::State {
  detail::InterceptOperators intercept{detail::current_recorder(), /*fast=*/true};
};

FastOperators::FastOperators() : state_(std::make_unique<State>()) {}
FastOperators::~FastOperators() = default;

}  // namespace zero
