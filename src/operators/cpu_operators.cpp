#include "operators/cpu_operators.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "operators/attention.h"
#include "operators/gelu.h"
#include "operators/product.h"
#include "operators/target_gradients.h"
#include "seam/dispatch.h"

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
  std::optional<at::Tensor> products = fast_products_of_pairs(tensor_at(stack, 0, 2), tensor_at(stack, 1, 2));
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
    add("aten::_scaled_dot_product_flash_attention_for_cpu", "", &attention);
    add("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "", &attention_backward);
    add("aten::nll_loss_backward", "", &keep_target_gradient);
    add("aten::_log_softmax_backward_data", "", &take_target_gradient);
    return result;
  }();
  return *table;
}

/// LibTorch may multiply fp32 matrices as bf16 or TF32 where the user has said so; ours do not.
bool wants_whole_fp32() {
  const at::Float32Precision precision =
      at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision == at::Float32Precision::NONE || precision == at::Float32Precision::IEEE;
}

/// The guard of all of them: what our kernels may get, which read memory on the CPU by strides.
bool may_be_ours(const c10::IValue& input) {
  if (!input.isTensor() || !input.toTensor().defined()) return true;
  const at::Tensor& tensor = input.toTensor();
  return tensor.layout() == at::kStrided && tensor.is_cpu() &&
         (tensor.scalar_type() != at::kFloat || wants_whole_fp32());
}

}  // namespace

bool has_cpu_operators() { return true; }

bool run_cpu_operator(const c10::OperatorHandle& op, Stack& stack) {
  const auto found = operators().find(op);
  if (found == operators().end()) return false;
  // What keep_target_gradient has left is taken whatever has been set since.
  if (found->second == &take_target_gradient) return take_target_gradient(stack);
  const auto inputs = torch::jit::last(stack, op.schema().arguments().size());
  return std::all_of(inputs.begin(), inputs.end(), &may_be_ours) && found->second(stack);
}

void prepare_cpu_operators(const std::vector<at::Tensor>& outputs) { prepare_target_gradients(outputs); }

}  // namespace zero::detail
