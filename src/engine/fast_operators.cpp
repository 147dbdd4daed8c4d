#include "engine/fast_operators.h"

#include <optional>
#include <unordered_map>
#include <utility>

#include "operators/gelu.h"
#include "operators/product.h"

namespace zero::detail {
namespace {

using torch::jit::Stack;

/// Takes the arguments of an operator with `inputs` of them off the stack and leaves its result.
bool replace(Stack& stack, size_t inputs, at::Tensor result) {
  torch::jit::drop(stack, inputs);
  torch::jit::push(stack, std::move(result));
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
  std::optional<at::Tensor> product = product_of_odd_rows(tensor_at(stack, 0, 2), tensor_at(stack, 1, 2));
  return product && replace(stack, 2, std::move(*product));
}

using Operator = bool (*)(Stack&);

const std::unordered_map<c10::OperatorHandle, Operator>& operators() {
  static const auto* const table = [] {
    auto* result = new std::unordered_map<c10::OperatorHandle, Operator>();
    for (const auto& [name, run] :
         {std::pair{"aten::gelu", &gelu}, {"aten::gelu_backward", &gelu_backward}, {"aten::mm", &mm}})
      result->emplace(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""), run);
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
