#include "tensor/dispatch.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "seam/above_autograd.h"
#include "seam/stack_tensors.h"
#include "tensor/call.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

using torch::jit::Stack;

bool reads_parallel(const c10::IValue& value) {
  if (!may_hold_tensors(value)) return false;
  bool found = false;
  for_each_tensor(value, [&](const at::Tensor& tensor) { found = found || is_parallel(tensor); });
  return found;
}

Rule remembered_rule(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Rule> known;
  const auto [entry, is_new] = known.try_emplace(&op.schema(), nullptr);
  if (is_new) entry->second = rule_of(op.schema().name());
  return entry->second;
}

bool is_composed_of_others(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// Writing to a tensor that is cut, of which only a gathered copy would change.
bool writes_part(const Call& call) {
  for (size_t i = 0; i < call.count(); ++i)
    if (call.writes(i) && reads_parallel(call.argument(i))) return true;
  return false;
}

// All ranks compute the operator of whole tensors.
void compute_gathered(Call& call, const std::string& why) {
  TensorAxis& axis = *call.axis();
  require(axis.gathers_unknown() && !writes_part(call), ErrorKind::Unsupported, call.name(), why,
          axis.gathers_unknown() ? "make a new tensor instead of writing to this one, or gather its parameter"
                                 : "gather its parameter, or set TensorParallelOptions::gather_unknown");
  axis.note_gathered(call.name(), why);
  for (size_t i = 0; i < call.count(); ++i) {
    if (!reads_parallel(call.argument(i))) continue;
    call.argument(i) = with_tensors(call.argument(i), [&](const at::Tensor& tensor) {
      return tensor.defined() ? call.gathered(value_of(tensor), /*for_parts=*/false) : tensor;
    });
  }
  call.run();
}

// Puts the whole in place of parameters that are gathered where they are used. Whether anything is cut.
bool gather_parameters(Call& call) {
  bool is_cut = false;
  for (size_t i = 0; i < call.count(); ++i) {
    if (!reads_parallel(call.argument(i))) continue;
    call.argument(i) = with_tensors(call.argument(i), [&](const at::Tensor& tensor) {
      if (!tensor.defined() || !is_parallel(tensor)) return tensor;
      const Value value = value_of(tensor);
      is_cut = is_cut || value.cut;
      return value.cut ? tensor : value.tensor;
    });
  }
  return is_cut;
}

void compute_by_rule(Call& call, Rule rule, Stack& stack) {
  const Stack arguments(stack.end() - static_cast<int64_t>(call.count()), stack.end());
  const size_t below = stack.size() - call.count();
  try {
    rule(call);
  } catch (const NoRule& problem) {
    stack.resize(below);
    stack.insert(stack.end(), arguments.begin(), arguments.end());
    compute_gathered(call, problem.what());
  }
}

void compute_parallel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const bool concerned =
      std::any_of(stack->end() - static_cast<int64_t>(count), stack->end(), reads_parallel);
  const Rule rule = concerned ? remembered_rule(op) : nullptr;
  // What it is composed of comes here again.
  if (concerned && rule == nullptr && is_composed_of_others(op))
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradCPU), stack);
  const LocalTensors local_tensors;
  if (!concerned)
    return op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kParallelKey),
                              stack);
  Call call(op, *stack);
  if (!gather_parameters(call)) return call.run();
  if (rule != nullptr) return compute_by_rule(call, rule, *stack);
  compute_gathered(call, "no rank can compute its part of it alone");
}

}  // namespace

void register_parallel_operators() { set_above_autograd(&compute_parallel); }

}  // namespace zero::detail
